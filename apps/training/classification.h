// Task 1: texts with a rating, or with a class.
#pragma once

#include "training/classified_texts.h"
#include "training/task.h"
#include "training/two_sided.h"

namespace polyhead::training {

std::unique_ptr<Task> classification_task(const TaskOptions& options);

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
