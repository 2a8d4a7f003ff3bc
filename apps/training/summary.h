// Task 3: choosing the sentence of an abstract that sums it up.
#pragma once

#include <span>

#include "polyhead/models/sentence_chooser.h"
#include "training/data.h"
#include "training/task.h"

namespace polyhead::training {

// Mean ROUGE-1 F, times 100, of the sentences that the model chooses, that the baselines choose, and of the best sentence of each abstract.
struct SummaryScores {
  double model, first_sentence, cue_phrase, best_sentence;
};
SummaryScores score_summaries(const models::SentenceChooser& model, std::span<const Abstract> abstracts);

// Uses a twentieth of the abstracts for validation.
std::unique_ptr<Task> summary_task(const TaskOptions& options);

}  // namespace polyhead::training
