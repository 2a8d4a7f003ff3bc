// Output of `polyhead try sentiment`.
#pragma once

#include <string>

#include "polyhead/models/text_classifier.h"
#include "try_page.h"

namespace polyhead::app {

// The rating or class of a text, what each pooling head adds to it, and which words the head reads. Also as a page, if it has a path.
void explain_sentiment(const models::TextModel& model, const std::string& input, PageFile page, bool as_json);

struct SentimentScoring {
  std::string data, baseline;  // files of rated texts; a bag of words that learns from `baseline` is scored beside the model
  bool ablate = false;         // score the model without each head too
  bool json = false;
};
void score_sentiment(const models::TextModel& model, const SentimentScoring& scoring);

}  // namespace polyhead::app
