// A teaching grammar: English sentences with their French translation, and which words belong together. It has what makes translation more
// than a list of words: agreement in gender and number, adjectives before and after the noun, elision, ne … pas around the verb, questions,
// compound tenses. Words and links are right by construction, so that a model's attention can be compared with them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "training/data.h"

namespace polyhead::training {

// The parts differ in combinations of words: noun phrases (noun and adjectives) and clauses (noun, verb or predicate, object). Each validation or
// held-out sentence has a combination that no training sentence has. Validation chooses the model, and held_out judges it; combinations reserved
// for held_out, such as "the small red car" and "car … parked", occur in no other part.
enum class GrammarPart : std::uint8_t { training, validation, held_out };

// Returns a sentence: its English words, its French words and the links between them. Equal arguments give the same sentence. Each French word
// has one sure link and may have possible links too. "l'" and "n'" are words.
AlignedPair grammar_sentence(GrammarPart part, std::uint64_t seed, std::uint64_t number);

// Returns the pair whose English sentence is this text, for example to get the word links of a sentence that somebody types. The search draws random
// sentences from the words of the text. Absent if the text is not in the grammar, or if it is long and the search does not find it.
std::optional<AlignedPair> grammar_translation(std::string_view english);

// Joins words to a text: no space after an apostrophe or before "." and ","; a space before "?" in French only.
enum class Language : std::uint8_t { english, french };
std::string sentence_text(const std::vector<std::string>& words, Language language);

}  // namespace polyhead::training
