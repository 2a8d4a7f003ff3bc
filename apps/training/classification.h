// Task 1: texts with a rating, or with a class.
#pragma once

#include "training/classified_texts.h"
#include "training/task.h"
#include "training/two_sided.h"

namespace polyhead::training {

std::unique_ptr<Task> classification_task(const TaskOptions& options);

// Texts prepared for a model: labels become the model's label numbers (Error for an unknown label); texts with too many tokens for the model are left out, and
// note() reports their number.
struct ScoredTexts {
  ClassifiedTexts data;
  std::vector<models::TextInput> inputs;
  ScoredTexts(const models::TextModel& model, ClassifiedTexts data, const std::function<void(const std::string&)>& note);
};

struct ClassificationScore {
  // How many texts were scored. Texts with the rating 0 are not scored; texts with labels all are.
  std::int64_t counted = 0;
  // accuracy: share of texts whose label, or the sign of whose rating, is right. correlation of the ratings; NaN for labels.
  double accuracy = 0, correlation = 0;
};
ClassificationScore score_texts(const models::TextModel& model, const ScoredTexts& texts);
ClassificationScore score_bag_of_words(const ClassifiedTexts& training, const ClassifiedTexts& data);
std::string described(const ClassificationScore& score);  // such as "accuracy 0.8123, correlation 0.7412"

// The effect of switching one head off. `layer` is the number of the encoder's layer that has the head; for a pooling head it is config.layers.
struct WithoutHead {
  std::int64_t layer = 0, head = 0;
  // How much the answers change without the head. Ratings: the mean absolute change. Labels: the share of answers that change.
  double change = 0;
  double accuracy = 0;  // the accuracy without the head minus the accuracy with it
};
std::vector<WithoutHead> score_without_heads(const models::TextModel& model, const ScoredTexts& texts);

}  // namespace polyhead::training
