// Baselines of word alignment: IBM model 2 and the diagonal.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "training/data.h"

namespace polyhead::training {

struct TokenPair {
  std::vector<std::string> source, target;
};

struct AlignmentModelConfig {
  // Iterations of expectation maximisation. This number is run with IBM model 1, and then again with model 2.
  std::int64_t iterations = 5;
  double tension = 4;           // the larger it is, the more likely are positions near the diagonal
  double no_source = 0.08;      // probability that a target token translates no source token
};

// IBM model 2 (Brown et al. 1993) with the diagonal prior of Dyer et al. (2013) in place of a table of positions:
// p(i | j) is proportional to exp(-tension |(i + 1/2) / source tokens - (j + 1/2) / target tokens|). Unknown words are aligned by position.
class IbmModel2 {
 public:
  explicit IbmModel2(std::span<const TokenPair> pairs, const AlignmentModelConfig& config = {});
  // Returns [target][source + 1]: for each target token the probability that it translates each source token, and last the probability that it translates none.
  std::vector<std::vector<double>> posterior(const TokenPair& pair) const;
  // Links each target token to its likeliest source token, except where "no source token" is likelier.
  std::vector<Link> align(const TokenPair& pair) const;

 private:
  std::vector<std::vector<double>> posterior(std::span<const std::int64_t> source, std::span<const std::int64_t> target, double tension) const;
  std::vector<std::int64_t> ids(std::span<const std::string> tokens, bool target) const;

  AlignmentModelConfig config_;
  std::map<std::string, std::int64_t> source_ids_, target_ids_;             // numbers of the words in the training data; ids() returns -1 for other words
  // the probability of a target word given a source word; the last row: given no source word
  std::vector<std::map<std::int64_t, double>> translations_;
};

// Combines the posteriors of the two directions (Liang et al. 2006): for each target token the product of `posterior` and `reverse`, the posterior of
// the model from target to source. The factor for "no source token" is the probability that no source token links to it. Each row is scaled to sum to 1.
std::vector<std::vector<double>> agreed_posterior(std::vector<std::vector<double>> posterior, const std::vector<std::vector<double>>& reverse);

// Links each target token with the source token at the same relative position in the sentence.
std::vector<Link> diagonal_links(std::int64_t source_tokens, std::int64_t target_tokens);

}  // namespace polyhead::training
