// Scores of the terms of texts (models::terms_of): a linear model of ratings beside the heads.
#pragma once

#include "polyhead/models/text_classifier.h"
#include "training/classified_texts.h"

namespace polyhead::training {

struct TermScores {
  std::vector<std::string> terms;  // sorted
  Tensor table;                    // as TextClassifier::scores; absent without terms
  double constant = 0;
};
// The scores are the ridge regression of the ratings on the terms. A term counts more where it is rare, as in tf-idf, and where its texts are
// rated unlike the others (as in NB-SVM, Wang and Manning 2012); all terms are fitted, those that say most are kept. The heads are
// trained without the scores, and the answer is a weighted sum of both: trained jointly, the scores overfit.
// `weight`: what the scores and the constant are multiplied by.
TermScores fit_term_scores(const ClassifiedTexts& data, const models::TextClassifierConfig& config, double weight);

// The terms that most texts have, sorted: as many as get scores.
std::vector<std::string> most_frequent_terms(const std::vector<std::string>& texts);

}  // namespace polyhead::training
