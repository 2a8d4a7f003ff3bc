// Task 2: a translator of the grammar's sentences, or of a file of sentence pairs. One head of the decoder is guided: a loss directs the head's attention to
// the source words of each target word. The links of the grammar, or IBM model 2 of the training pairs, give these source words.
#pragma once

#include <cmath>

#include "polyhead/models/translator.h"
#include "training/data.h"
#include "training/task.h"
#include "training/word_alignment.h"

namespace polyhead::training {

inline constexpr const char* kGrammar = "grammar";  // TaskOptions::data with this value selects the teaching grammar instead of a file

std::unique_ptr<Task> translation_task(const TaskOptions& options);  // if options.data is empty, the task learns the grammar

// A target of the guide: row `row` of the attention map should give the share `share` of its attention to column `column`.
struct GuideTarget {
  std::int64_t row, column;
  double share;
};
// Returns -weight / rows * sum of share * log(p[row,column] + 1e-6), where `rows` is the number of rows with a target. Adds the gradient of this loss by p to
// d_p.
template <class T>
double guide_loss(const T* p, std::int64_t columns, std::span<const GuideTarget> targets, double weight, T* d_p) {
  constexpr double kFloor = 1e-6;  // keeps the logarithm finite if an attention weight is 0
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

// A sentence pair as a training example.
struct Example {
  struct Guide {
    // Index of a target token and of a source token. The source has the end token as its last token.
    std::int64_t target, source;
    double share;
  };
  std::vector<std::int64_t> source, target;
  std::vector<Guide> guides;
};
// A sentence pair. shares[j] is the guide for target word j: a share for each source word, then the share of the end token.
struct LinkedPair {
  SentencePair text;
  std::int64_t tokens;  // the number of tokens of the source or the target, whichever is larger
  std::vector<std::vector<double>> shares;
};
// Replaces one target word, and the source word of its sure link, by invented words; in half of the cases by the same invented word in both texts, as with
// names. Returns the pair unchanged if it has no such words.
LinkedPair with_invented_word(const models::BytePairTokenizer& tokenizer, LinkedPair pair, std::uint64_t seed);
// Prepares a pair that is joined to a following pair: replaces the punctuation at the end of both texts by a comma, or removes it. Returns the pair unchanged
// if a text does not end with . ! or ?, or consists of punctuation only.
LinkedPair without_end(const models::BytePairTokenizer& tokenizer, LinkedPair pair, bool comma);
// Joins the pairs to one text, with a space between them.
Example joined_example(const models::BytePairTokenizer& tokenizer, std::span<const LinkedPair> parts);

// For each token the index of its word in `words`, the words of the text in order; -1 for white space.
std::vector<std::int64_t> words_of_tokens(const models::BytePairText& tokens, std::string_view text, const std::vector<std::string>& words);

// A sentence pair with links between words, as the model reads it.
struct AlignedTokens {
  models::BytePairText source, target;
  std::vector<std::int64_t> source_words, target_words;  // for each token, the index of the word to which it belongs
  AlignedPair pair;
};
// Tokens of a pair from a file, whose words are separated by white space.
AlignedTokens aligned_tokens(const models::BytePairTokenizer& tokenizer, const AlignedPair& pair);
// Tokens of a pair of the grammar, whose words are joined to a text as it is printed.
AlignedTokens grammar_tokens(const models::BytePairTokenizer& tokenizer, const AlignedPair& pair);

struct TranslationScore {
  std::int64_t sentences = 0, exact = 0;  // exact: how many translations equal one of their references
  std::int64_t too_long = 0;              // how many sentences are too long for the model; these count as not translated
  double bleu = 0;
  std::vector<std::string> texts;  // the model's translations
};
TranslationScore score_translations(const models::Translator& model, const std::vector<Translations>& sentences, std::int64_t beams = 1);

// Alignment error rates of the guided head, of all heads, and of the baselines.
struct AlignmentScore {
  std::int64_t sentences = 0;
  double guided = 0, diagonal = 0;
  std::optional<double> ibm{};  // absent if there are no training pairs, from which IBM model 2 would learn
  std::vector<std::vector<double>> heads{};  // [layer][head]
};
AlignmentScore score_alignment(const models::Translator& model, const std::vector<AlignedTokens>& pairs, const IbmModel2* ibm);

IbmModel2 ibm_of_pairs(const models::BytePairTokenizer& tokenizer, const std::vector<SentencePair>& pairs);
IbmModel2 ibm_of_grammar();

// Returns `count` sentence pairs from the held-out part of the grammar.
std::vector<AlignedPair> held_out_sentences(std::int64_t count);

}  // namespace polyhead::training
