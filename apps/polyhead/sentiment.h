// Output of `polyhead try sentiment`.
#pragma once

#include <string>

#include "polyhead/models/text_classifier.h"
#include "try_page.h"

namespace polyhead::app {

// Prints the rating or class of a text, what each pooling head adds to the rating, and which words the head reads. Also writes the page, if `page` has a path.
void explain_sentiment(const models::TextModel& model, const std::string& input, PageFile page, bool as_json);

struct SentimentScoring {
  // data and baseline: files of rated texts. If `baseline` is given, a bag of words that learns from this file is scored too.
  std::string data, baseline;
  bool ablate = false;         // for each head, also score the model with this head switched off
  bool json = false;
};
void score_sentiment(const models::TextModel& model, const SentimentScoring& scoring);

}  // namespace polyhead::app
