#include "training/term_scores.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "training/ridge.h"

namespace polyhead::training {
namespace {

// Chosen by cross-validation: docs/experiments.md, "Ratings of texts".
constexpr double kPenalty = 4000;            // factor of the squared parameters in the ridge regression
// The scores are fitted to sign(rating) |rating|^0.75. Compared with the rating itself, its sign counts more and its size less.
constexpr double kRatingPower = 0.75;
constexpr double kGapShare = 0.7;            // factor for pairs of words that have one word between them
constexpr std::size_t kMostTerms = 40'000;  // at most this many terms get scores

// All terms of the texts, numbered in sorted order, and how often they occur.
struct TermCounts {
  std::vector<std::string> terms;
  std::vector<double> texts_with;              // for each term, the number of texts that contain it
  std::vector<std::vector<std::size_t>> rows;  // for each text, the numbers of the terms that it contains
  std::vector<double> shares;                  // for each text, the weight of each of its terms, which is the same for all of them

  explicit TermCounts(const std::vector<std::string>& texts) {
    std::vector<models::TextTerms> all;
    std::map<std::string, std::size_t> numbers;
    for (const std::string& text : texts) {
      all.push_back(models::terms_of(text)), shares.push_back(all.back().share);
      for (const std::string& term : all.back().terms) numbers.emplace(term, 0);
    }
    for (auto& [term, number] : numbers) number = terms.size(), terms.push_back(term);
    texts_with.resize(terms.size());
    for (const models::TextTerms& text : all) {
      rows.emplace_back();
      for (const std::string& term : text.terms) rows.back().push_back(numbers[term]), texts_with[rows.back().back()] += 1;
    }
  }
  // Returns the kMostTerms terms with the largest importance, in ascending order of their numbers. Only terms that at least two texts contain are considered.
  std::vector<std::size_t> best(const std::vector<double>& importance) const {
    std::vector<std::size_t> list;
    for (std::size_t i = 0; i < terms.size(); ++i)
      if (texts_with[i] >= 2) list.push_back(i);
    std::ranges::stable_sort(list, std::ranges::greater{}, [&](std::size_t i) { return importance[i]; });
    list.resize(std::min(list.size(), kMostTerms));
    std::ranges::sort(list);
    return list;
  }
  std::vector<std::string> names(const std::vector<std::size_t>& of) const {
    std::vector<std::string> list;
    for (const std::size_t i : of) list.push_back(terms[i]);
    return list;
  }
};

}  // namespace

TermScores fit_term_scores(const ClassifiedTexts& data, const models::TextClassifierConfig& config, double weight) {
  const TermCounts counts(data.texts);
  const auto texts = static_cast<double>(data.ratings.size());
  const double mean = std::accumulate(data.ratings.begin(), data.ratings.end(), 0.0) / texts;
  std::vector<double> values(counts.texts_with.size()), importance(values.size());
  for (std::size_t i = 0; i < counts.rows.size(); ++i)
    for (const std::size_t term : counts.rows[i]) values[term] += data.ratings[i] - mean;
  for (std::size_t term = 0; term < values.size(); ++term) {
    const double rare = 1 + std::log((1 + texts) / (1 + counts.texts_with[term])), unlike = 0.1 + std::abs(values[term]) / (counts.texts_with[term] + 3);
    values[term] = rare * unlike * (counts.terms[term].find(models::kTermGap) == std::string::npos ? 1 : kGapShare);
  }
  std::vector<SparseRow> rows(counts.rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (const std::size_t term : counts.rows[i]) rows[i].push_back({term, counts.shares[i] * values[term]});
  std::vector<double> wanted;
  for (const double rating : data.ratings) wanted.push_back(std::copysign(std::pow(std::abs(rating), kRatingPower), rating));
  const Ridge ridge = fit_ridge(rows, values.size(), wanted, {.penalty = kPenalty});
  for (std::size_t term = 0; term < values.size(); ++term) importance[term] = std::abs(ridge.parameters[term] * values[term]) * std::sqrt(counts.texts_with[term]);
  const std::vector<std::size_t> best = counts.best(importance);
  TermScores scores{.terms = counts.names(best), .constant = weight * ridge.constant};
  if (scores.terms.empty()) return scores;
  models::TextClassifierConfig with_terms = config;
  with_terms.terms = std::ssize(scores.terms);
  scores.table = models::TextClassifier(with_terms).scores;
  for (std::size_t i = 0; i < best.size(); ++i) scores.table.data<float>()[i] = static_cast<float>(weight * ridge.parameters[best[i]] * values[best[i]]);
  return scores;
}

std::vector<std::string> most_frequent_terms(const std::vector<std::string>& texts) {
  const TermCounts counts(texts);
  return counts.names(counts.best(counts.texts_with));
}

}  // namespace polyhead::training
