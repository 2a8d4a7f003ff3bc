// Steps that split a text into words, which a model then splits into tokens: the "pre_tokenizer" of tokenizer.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "models/tokenizer/aligned_text.h"
#include "models/tokenizer/char_class.h"
#include "models/tokenizer/regex.h"

namespace polyhead::models {

// Treatment of the delimiters at which a text is split. Results for "a--b" split at "-":
enum class Delimiters : std::uint8_t {
  removed,               // a b
  isolated,              // a - - b
  merged_with_previous,  // a- - b
  merged_with_next,      // a - -b
  contiguous,            // a -- b
};

// Splits a text at its delimiters. `parts`: the matches of the delimiter, and the text between them. Returns the words in order; none is empty.
std::vector<Match> split_at_matches(const std::vector<Match>& parts, Delimiters delimiters);

struct SplitAtClass {
  CharClass char_class;  // the class of the delimiters; if it is `punctuation`, every ASCII symbol is a delimiter too
  Delimiters delimiters;
};
struct SplitAtPattern {
  Regex pattern;
  Delimiters delimiters;
  bool invert = false;  // true: the text between matches is the delimiter, and the matches are the words
};
struct SplitWordsAndSymbols {};  // words are the matches of \w+|[^\w\s]+
struct SplitAtCharacter {
  char32_t delimiter;  // removed
};
struct SplitByLength {
  std::size_t characters;
};
struct ByteLevelWords {
  bool add_prefix_space = true;
  std::vector<Regex> pattern;  // GPT-2's pattern; empty: words are not split
};
enum class PrependScheme : std::uint8_t { always, first, never };
struct Metaspace {
  char32_t replacement = 0x2581;  // replaces each space
  PrependScheme prepend = PrependScheme::always;
  bool split = true;
};

using PreTokenizerStep = std::variant<SplitAtClass, SplitAtPattern, SplitWordsAndSymbols, SplitAtCharacter, SplitByLength, ByteLevelWords, Metaspace>;

// A text and its words, in order; a word is given as bytes [first,last) of the text.
struct Words {
  AlignedText text;
  std::vector<ByteSpan> words;
};

// GPT-2's pattern for words.
Regex gpt2_pattern();
// Returns the steps of BERT: words end at white space, and each punctuation character is a word.
std::vector<PreTokenizerStep> bert_words();

Words split_words(AlignedText text, const std::vector<PreTokenizerStep>& steps);

}  // namespace polyhead::models
