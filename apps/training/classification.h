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
  std::int64_t counted = 0;              // number of scored texts: with ratings, the texts whose rating is not 0; with labels, all texts
  double accuracy = 0, correlation = 0;  // accuracy of the rating's sign, or of labels; the correlation is NaN for labels
};
ClassificationScore score_texts(const models::TextModel& model, const ScoredTexts& texts);
ClassificationScore score_bag_of_words(const ClassifiedTexts& training, const ClassifiedTexts& data);
std::string described(const ClassificationScore& score);  // "accuracy 0.8123, correlation 0.7412"

// The effect of switching one head off. `layer` is the encoder's layer that has the head; layer = config.layers means a pooling head.
struct WithoutHead {
  std::int64_t layer = 0, head = 0;
  double change = 0;    // ratings: mean absolute change; labels: share of answers that change
  double accuracy = 0;  // accuracy without the head minus accuracy with it
};
std::vector<WithoutHead> score_without_heads(const models::TextModel& model, const ScoredTexts& texts);

}  // namespace polyhead::training
