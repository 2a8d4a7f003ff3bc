#include "polyhead/nn/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "core/philox.h"
#include "nn/check.h"
#include "nn/logit_rows.h"

namespace polyhead::nn {
namespace {

// Returns the random number in [0,1) that belongs to a seed, a position and a row.
double uniform(std::uint64_t seed, std::uint64_t position, std::int64_t row) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  constexpr std::uint32_t kDomain = 0x746f6b65;  // "toke" in ASCII: the random numbers differ from those of other uses of the seed
  const PhiloxBlock bits = philox4x32({low(position), low(position >> 32), low(static_cast<std::uint64_t>(row)), kDomain}, {low(seed), low(seed >> 32)});
  return uniform_double(bits[0], bits[1]);
}

// Returns how many tokens are needed, in the order `before`, until their probabilities sum to `enough`. It moves these tokens to the front. It partitions them
// as quickselect does, instead of sorting all tokens.
template <class Before, class Sum>
std::size_t count_of_mass(std::vector<std::int64_t>& tokens, double enough, const Before& before, const Sum& sum) {
  auto first = tokens.begin(), last = tokens.end();
  for (double mass = 0; last - first > 1;) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, before);
    const double half = sum(first, middle);
    if (mass + half >= enough) {
      last = middle;
    } else {
      mass += half;
      first = middle;
    }
  }
  return static_cast<std::size_t>(last - tokens.begin());
}

// Draws one of the row's tokens with the random number u in [0,1).
std::int64_t draw(const std::vector<double>& logits, const SamplingOptions& options, double u) {
  const double largest = *std::ranges::max_element(logits);
  std::vector<double> p(logits.size());
  for (std::size_t c = 0; c < p.size(); ++c) p[c] = std::exp((logits[c] - largest) / options.temperature);
  std::vector<std::int64_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto probability = [&](std::int64_t token) { return p[static_cast<std::size_t>(token)]; };
  const auto sum = [&](auto first, auto last) { return std::transform_reduce(first, last, 0.0, std::plus(), probability); };
  // The order is that of the logits, because two different tokens may both have the probability 0 in float64.
  const auto before = [&](std::int64_t a, std::int64_t b) {
    const double x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
  if (options.top_k > 0 && options.top_k < std::ssize(tokens)) {
    std::ranges::nth_element(tokens, tokens.begin() + options.top_k - 1, before);
    tokens.resize(static_cast<std::size_t>(options.top_k));
  }
  if (options.top_p < 1) tokens.resize(count_of_mass(tokens, options.top_p * sum(tokens.begin(), tokens.end()), before, sum));
  if (tokens.size() < logits.size()) std::ranges::sort(tokens);  // top_k and top_p leave the tokens in any order, and the draw must not depend on it
  double left = u * sum(tokens.begin(), tokens.end());
  std::int64_t last = tokens.front();
  for (const std::int64_t token : tokens) {
    if (probability(token) == 0) continue;
    last = token;
    left -= probability(token);
    if (left < 0) break;
  }
  return last;
}

// Writes choose(row, values) for every row. If a row is refused, nothing is written.
template <class F>
void choose_tokens(const char* operation, ConstTensorView logits, TensorView tokens, const F& choose) {
  require_logits(operation, logits);
  require_exactly(operation, {"tokens", tokens}, {logits.extent(0)}, DType::i64);
  require_no_overlap(operation, {"tokens", tokens}, {{"logits", logits}});
  std::vector<std::int64_t> chosen;
  for_each_row_of_logits(operation, logits, [](std::int64_t) { return true; }, [&](std::int64_t row, const std::vector<double>& values) { chosen.push_back(choose(row, values)); });
  for (std::size_t row = 0; row < chosen.size(); ++row) tokens.data<std::int64_t>()[static_cast<std::int64_t>(row) * tokens.stride(0)] = chosen[row];
}

}  // namespace

void greedy_tokens(ConstTensorView logits, TensorView tokens) {
  choose_tokens("greedy_tokens", logits, tokens, [](std::int64_t, const std::vector<double>& values) { return std::ranges::max_element(values) - values.begin(); });
}

void sample_tokens(ConstTensorView logits, TensorView tokens, const SamplingOptions& options) {
  constexpr const char* kOperation = "sample_tokens";
  require(options.temperature > 0 && std::isfinite(options.temperature), kOperation, ": temperature is ", options.temperature,
          "; it must be finite and above 0 (greedy_tokens chooses the likeliest token)");
  require(options.top_k >= 0, kOperation, ": top_k is ", options.top_k, "; it must be at least 0 (0: all tokens)");
  require(options.top_p > 0 && options.top_p <= 1, kOperation, ": top_p is ", options.top_p, "; it must be in (0,1]");
  require(options.seed && options.position, kOperation, ": ", options.seed ? "position" : "seed",
          " is missing; a draw needs a seed and the token's position in its text");
  choose_tokens(kOperation, logits, tokens,
                [&](std::int64_t row, const std::vector<double>& values) { return draw(values, options, uniform(*options.seed, *options.position, row)); });
}

}  // namespace polyhead::nn
