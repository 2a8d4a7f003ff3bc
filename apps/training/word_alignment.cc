#include "training/word_alignment.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace polyhead::training {

IbmModel2::IbmModel2(std::span<const TokenPair> pairs, const AlignmentModelConfig& config) : config_(config) {
  for (const TokenPair& pair : pairs) {
    for (const auto& word : pair.source) source_ids_.try_emplace(word, std::ssize(source_ids_));
    for (const auto& word : pair.target) target_ids_.try_emplace(word, std::ssize(target_ids_));
  }
  translations_.resize(source_ids_.size() + 1);
  struct Ids {
    std::vector<std::int64_t> source, target;
  };
  std::vector<Ids> corpus;
  for (const TokenPair& pair : pairs) corpus.push_back({ids(pair.source, false), ids(pair.target, true)});
  for (const Ids& pair : corpus)  // at first, all target words that occur in pairs with a source word are equally likely translations of it
    for (const std::int64_t target : pair.target) {
      for (const std::int64_t source : pair.source) translations_[static_cast<std::size_t>(source)].emplace(target, 1);
      translations_.back().emplace(target, 1);
    }
  const auto normalise = [&] {
    for (auto& row : translations_) {
      double sum = 0;
      for (const auto& [target, value] : row) sum += value;
      for (auto& [target, value] : row) value = sum > 0 ? value / sum : 0;
    }
  };
  normalise();
  for (std::int64_t iteration = 0; iteration < 2 * config.iterations; ++iteration) {
    auto counts = translations_;
    for (auto& row : counts)
      for (auto& [target, value] : row) value = 0;
    for (const Ids& pair : corpus) {
      // if tension is 0, all positions are equally likely, as in IBM model 1
      const auto p = posterior(pair.source, pair.target, iteration < config.iterations ? 0 : config.tension);
      for (std::size_t j = 0; j < pair.target.size(); ++j)
        for (std::size_t i = 0; i <= pair.source.size(); ++i)
          counts[i < pair.source.size() ? static_cast<std::size_t>(pair.source[i]) : counts.size() - 1][pair.target[j]] += p[j][i];
    }
    translations_ = std::move(counts);
    normalise();
  }
}

std::vector<std::int64_t> IbmModel2::ids(std::span<const std::string> tokens, bool target) const {
  const auto& known = target ? target_ids_ : source_ids_;
  std::vector<std::int64_t> result;
  for (const auto& token : tokens) {
    const auto found = known.find(token);
    result.push_back(found == known.end() ? -1 : found->second);
  }
  return result;
}

std::vector<std::vector<double>> IbmModel2::posterior(std::span<const std::int64_t> source, std::span<const std::int64_t> target, double tension) const {
  constexpr double kUnseen = 1e-9;  // probability of a translation that is not in the training data
  const auto translation = [&](std::size_t row, std::int64_t word) {
    const auto found = translations_[row].find(word);
    return found == translations_[row].end() ? kUnseen : std::max(found->second, kUnseen);
  };
  std::vector<std::vector<double>> result(target.size(), std::vector<double>(source.size() + 1));
  for (std::size_t j = 0; j < target.size(); ++j) {
    double sum = 0, all = 0;
    for (std::size_t i = 0; i < source.size(); ++i) {
      const double from = (static_cast<double>(i) + 0.5) / static_cast<double>(source.size()), to = (static_cast<double>(j) + 0.5) / static_cast<double>(target.size());
      sum += result[j][i] = std::exp(-tension * std::abs(from - to));
    }
    for (std::size_t i = 0; i <= source.size(); ++i) {
      const bool none = i == source.size();
      const double prior = none ? (source.empty() ? 1 : config_.no_source) : (1 - config_.no_source) * result[j][i] / sum;
      const bool unknown = !none && source[i] < 0;
      all += result[j][i] = prior * (unknown ? kUnseen : translation(none ? translations_.size() - 1 : static_cast<std::size_t>(source[i]), target[j]));
    }
    for (double& p : result[j]) p /= all;
  }
  return result;
}

std::vector<std::vector<double>> IbmModel2::posterior(const TokenPair& pair) const { return posterior(ids(pair.source, false), ids(pair.target, true), config_.tension); }

std::vector<Link> IbmModel2::align(const TokenPair& pair) const {
  std::vector<Link> links;
  const auto p = posterior(pair);
  for (std::size_t j = 0; j < p.size(); ++j) {
    const auto best = std::max_element(p[j].begin(), p[j].end()) - p[j].begin();
    if (best < std::ssize(pair.source)) links.push_back({.source = best, .target = static_cast<std::int64_t>(j)});
  }
  return links;
}

std::vector<std::vector<double>> agreed_posterior(std::vector<std::vector<double>> posterior, const std::vector<std::vector<double>>& reverse) {
  for (std::size_t j = 0; j < posterior.size(); ++j) {
    std::vector<double>& row = posterior[j];
    for (std::size_t i = 0; i < reverse.size(); ++i) row[i] *= reverse[i][j], row.back() *= 1 - reverse[i][j];
    const double sum = std::accumulate(row.begin(), row.end(), 0.0);
    for (double& p : row) p /= sum;
  }
  return posterior;
}

std::vector<Link> diagonal_links(std::int64_t source_tokens, std::int64_t target_tokens) {
  std::vector<Link> links;
  for (std::int64_t j = 0; j < target_tokens && source_tokens > 0; ++j) links.push_back({.source = (2 * j + 1) * source_tokens / (2 * target_tokens), .target = j});
  return links;
}

}  // namespace polyhead::training
