// Scores of the terms of texts (models::terms_of): a linear model whose result is added to the result of the heads.
#pragma once

#include "polyhead/models/text_classifier.h"
#include "training/classified_texts.h"

namespace polyhead::training {

struct TermScores {
  std::vector<std::string> terms;  // sorted
  Tensor table;                    // the scores of `terms` in the layout of TextClassifier::scores; absent if there are no terms
  double constant = 0;
};
// Fits a ridge regression of the ratings on the terms. A term has a larger weight if it is rare, as in tf-idf, and if the ratings of its texts
// differ from the mean (as in NB-SVM, Wang and Manning 2012). All terms are fitted; only the most important ones are kept. The rating is a weighted
// sum of these scores and of the heads' result. The heads are trained without the scores, because scores that are trained with them overfit.
// `weight` multiplies the scores and the constant.
TermScores fit_term_scores(const ClassifiedTexts& data, const models::TextClassifierConfig& config, double weight);

// The most frequent terms, sorted. Their number has the same limit as the terms that get scores from fit_term_scores().
std::vector<std::string> most_frequent_terms(const std::vector<std::string>& texts);

}  // namespace polyhead::training
