// Task 2: a translator of the grammar's sentences, or of a file of sentence pairs. One head of its decoder is guided to the words that a word
// comes from: by the links of the grammar, or by IBM model 2 of the training pairs.
#pragma once

#include <cmath>

#include "polyhead/models/translator.h"
#include "training/data.h"
#include "training/task.h"
#include "training/word_alignment.h"

namespace polyhead::training {

inline constexpr const char* kGrammar = "grammar";  // in place of a file

std::unique_ptr<Task> translation_task(const TaskOptions& options);  // no data: the grammar

// A share of the attention of row `row` that should be at column `column`.
struct GuideTarget {
  std::int64_t row, column;
  double share;
};
// -weight / rows of the sum of share log(p[row,column] + 1e-6), where `rows` counts the rows that have a target, and its gradient by p, added to d_p.
template <class T>
double guide_loss(const T* p, std::int64_t columns, std::span<const GuideTarget> targets, double weight, T* d_p) {
  constexpr double kFloor = 1e-6;  // a weight that rounds to 0 has a finite loss
  std::int64_t rows = 0, last = -1;
  for (const GuideTarget& target : targets) rows += std::exchange(last, target.row) != target.row;
  double loss = 0;
  for (const GuideTarget& target : targets) {
    const double scale = weight * target.share / static_cast<double>(rows), at = static_cast<double>(p[target.row * columns + target.column]) + kFloor;
    loss -= scale * std::log(at);
    d_p[target.row * columns + target.column] -= static_cast<T>(scale / at);
  }
  return loss;
}

// A sentence pair as the model is trained with it.
struct Example {
  struct Guide {
    std::int64_t target, source;  // tokens; source tokens count with the end
    double share;
  };
  std::vector<std::int64_t> source, target;
  std::vector<Guide> guides;
};
// A sentence pair and shares[j]: of target word j, a share for each source word and, last, for the end.
struct LinkedPair {
  SentencePair text;
  std::int64_t tokens;  // of the longer text
  std::vector<std::vector<double>> shares;
};
// One word and the word that it surely comes from are replaced by words that no text has, half of the time by the same one, as names are. The
// pair itself if it has no such words.
LinkedPair with_invented_word(const models::BytePairTokenizer& tokenizer, LinkedPair pair, std::uint64_t seed);
// For a pair that goes on with another one: the sign at the end of both texts becomes a comma or is left out. The pair itself if one of them has no
// sign there, or nothing else.
LinkedPair without_end(const models::BytePairTokenizer& tokenizer, LinkedPair pair, bool comma);
// The pairs as one text, with a blank between them.
Example joined_example(const models::BytePairTokenizer& tokenizer, std::span<const LinkedPair> parts);

// Of each token the word that it is in, where `words` are those of the text in their order; -1 for white space.
std::vector<std::int64_t> words_of_tokens(const models::BytePairText& tokens, std::string_view text, const std::vector<std::string>& words);

// A sentence pair with links between words, as the model reads it.
struct AlignedTokens {
  models::BytePairText source, target;
  std::vector<std::int64_t> source_words, target_words;  // of each token
  AlignedPair pair;
};
// Of the file's words, which white space separates.
AlignedTokens aligned_tokens(const models::BytePairTokenizer& tokenizer, const AlignedPair& pair);
// Of the grammar's words, in text as it is printed.
AlignedTokens grammar_tokens(const models::BytePairTokenizer& tokenizer, const AlignedPair& pair);

struct TranslationScore {
  std::int64_t sentences = 0, exact = 0;  // exact: equal to one of the references
  std::int64_t too_long = 0;              // for the model; they count as not translated
  double bleu = 0;
  std::vector<std::string> texts;  // of the model
};
TranslationScore score_translations(const models::Translator& model, const std::vector<Translations>& sentences, std::int64_t beams = 1);

// Alignment error rates; the baselines stand beside the guided head.
struct AlignmentScore {
  std::int64_t sentences = 0;
  double guided = 0, diagonal = 0;
  std::optional<double> ibm{};  // absent without training pairs
  std::vector<std::vector<double>> heads{};  // [layer][head]
};
AlignmentScore score_alignment(const models::Translator& model, const std::vector<AlignedTokens>& pairs, const IbmModel2* ibm);

IbmModel2 ibm_of_pairs(const models::BytePairTokenizer& tokenizer, const std::vector<SentencePair>& pairs);
IbmModel2 ibm_of_grammar();

// `count` sentences of the grammar's held-out part.
std::vector<AlignedPair> held_out_sentences(std::int64_t count);

}  // namespace polyhead::training
