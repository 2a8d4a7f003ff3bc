// Task 1: texts with a rating, or with a class.
#pragma once

#include "polyhead/models/text_classifier.h"
#include "training/task.h"

namespace polyhead::training {

struct ClassifiedTexts {
  std::vector<std::string> texts;
  std::vector<double> ratings;       // of the texts; with labels: the number of the label
  std::vector<std::string> labels;   // sorted; empty: the file has ratings
  std::string skipped;               // lines that break the format; "" if none
};

// A file of ratings (data.h) or, if less than half of its lines are such, of lines "label TAB text".
ClassifiedTexts read_classified_texts(const std::filesystem::path& path);

std::unique_ptr<Task> classification_task(const TaskOptions& options);

// Pooling heads that training with ratings teaches to read the positive and the negative part of a text.
inline constexpr std::int64_t kPositiveHead = 0, kNegativeHead = 1;

// "A, but B" or "B, but A", made from a positive text A and a negative text B.
struct TwoSidedText {
  std::string text;
  models::ByteSpan positive, negative;
  double rating = 0;  // the mean of both
};
// `count` of them from the short texts of a list, with ratings of at least 1 and at most -1; fewer than two of a kind: none.
std::vector<TwoSidedText> two_sided_texts(const models::TextModel& model, const ClassifiedTexts& data, std::int64_t count, std::uint64_t seed);

struct Halves {
  std::int64_t texts = 0, both = 0;      // both: each of the two heads gives 0.45 or more of its attention to its part
  double positive = 0, negative = 0;     // mean mass of each head on its part
};
Halves score_halves(const models::TextModel& model, const std::vector<TwoSidedText>& texts);

// Texts as a model reads them: with the model's numbers of the labels, Error for a label that it does not know; without texts of more tokens
// than it takes, which `note` counts.
struct ScoredTexts {
  ClassifiedTexts data;
  std::vector<models::TextInput> inputs;
  ScoredTexts(const models::TextModel& model, ClassifiedTexts data, const std::function<void(const std::string&)>& note);
};

struct ClassificationScore {
  std::int64_t counted = 0;              // ratings other than 0, or all labels
  double accuracy = 0, correlation = 0;  // of the side of 0, or of labels; of labels no correlation: NaN
};
ClassificationScore score_texts(const models::TextModel& model, const ScoredTexts& texts);
ClassificationScore score_bag_of_words(const ClassifiedTexts& training, const ClassifiedTexts& data);
std::string described(const ClassificationScore& score);  // "accuracy 0.8123, correlation 0.7412"

// What becomes of the answers without a head: `layer` of the encoder, or layer = config.layers for the pooling.
struct WithoutHead {
  std::int64_t layer = 0, head = 0;
  double change = 0;    // of the rating: mean magnitude; of labels: share of other answers
  double accuracy = 0;  // without it, minus with it
};
std::vector<WithoutHead> score_without_heads(const models::TextModel& model, const ScoredTexts& texts);

}  // namespace polyhead::training
