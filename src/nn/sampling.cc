#include "polyhead/nn/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/philox.h"
#include "nn/check.h"
#include "nn/logit_rows.h"

namespace polyhead::nn {
namespace {

// In [0,1), 53 bits.
double uniform(std::uint64_t seed, std::uint64_t position, std::int64_t row) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const PhiloxBlock bits = philox4x32({low(position), low(position >> 32), low(static_cast<std::uint64_t>(row)), 0x746f6b65}, {low(seed), low(seed >> 32)});
  return static_cast<double>((std::uint64_t{bits[0]} << 21) | (bits[1] >> 11)) * 0x1p-53;
}

void require_tokens(const char* operation, ConstTensorView logits, TensorView tokens) {
  require_exactly(operation, {"tokens", tokens}, {logits.extent(0)}, DType::i64);
  require_separate(operation, {"tokens", tokens}, {{"logits", logits}});
}

std::int64_t& token_at(TensorView tokens, std::int64_t row) { return tokens.data<std::int64_t>()[row * tokens.stride(0)]; }

// Draws from the row's tokens; u is in [0,1).
std::int64_t draw(const std::vector<double>& logits, const SamplingOptions& options, double u) {
  const double largest = *std::ranges::max_element(logits);
  std::vector<double> p(logits.size());
  for (std::size_t c = 0; c < p.size(); ++c) p[c] = std::exp((logits[c] - largest) / options.temperature);
  std::vector<std::int64_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto probability = [&](std::int64_t token) { return p[static_cast<std::size_t>(token)]; };
  const auto sum_of = [&](const std::vector<std::int64_t>& of) { return std::accumulate(of.begin(), of.end(), 0.0, [&](double sum, std::int64_t token) { return sum + probability(token); }); };
  // By logits: of two tokens whose probabilities are both 0 in float64, the likelier one is first.
  const auto before = [&](std::int64_t a, std::int64_t b) {
    const double x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
  if (options.top_k > 0 && options.top_k < std::ssize(tokens)) {
    std::ranges::nth_element(tokens, tokens.begin() + options.top_k - 1, before);
    tokens.resize(static_cast<std::size_t>(options.top_k));
  }
  if (options.top_p < 1) {
    const double enough = options.top_p * sum_of(tokens);
    const auto later = [&](std::int64_t a, std::int64_t b) { return before(b, a); };
    std::ranges::make_heap(tokens, later);
    auto rest = tokens.end();
    for (double mass = 0; mass < enough && rest != tokens.begin();) {  // the likeliest move to the end, one by one
      std::pop_heap(tokens.begin(), rest, later);
      mass += probability(*--rest);
    }
    tokens.erase(tokens.begin(), rest);
  }
  std::ranges::sort(tokens);  // so that a draw does not depend on how the tokens were chosen
  double left = u * sum_of(tokens);
  std::int64_t last = tokens.front();
  for (const std::int64_t token : tokens) {
    if (probability(token) == 0) continue;
    last = token;
    left -= probability(token);
    if (left < 0) break;
  }
  return last;
}

}  // namespace

void greedy_tokens(ConstTensorView logits, TensorView tokens) {
  constexpr const char* kOperation = "greedy_tokens";
  require_logits(kOperation, logits);
  require_tokens(kOperation, logits, tokens);
  for_each_row_of_logits(kOperation, logits, [&](std::int64_t row, const std::vector<double>& values) {
    token_at(tokens, row) = std::ranges::max_element(values) - values.begin();
  });
}

void sample_tokens(ConstTensorView logits, TensorView tokens, const SamplingOptions& options) {
  constexpr const char* kOperation = "sample_tokens";
  require_logits(kOperation, logits);
  require_tokens(kOperation, logits, tokens);
  require(options.temperature > 0 && std::isfinite(options.temperature), kOperation, ": temperature is ", options.temperature,
          "; it must be finite and above 0 (greedy_tokens takes the likeliest token)");
  require(options.top_k >= 0, kOperation, ": top_k is ", options.top_k, "; it must be at least 0 (0: all tokens)");
  require(options.top_p > 0 && options.top_p <= 1, kOperation, ": top_p is ", options.top_p, "; it must be in (0,1]");
  for_each_row_of_logits(kOperation, logits, [&](std::int64_t row, const std::vector<double>& values) {
    token_at(tokens, row) = draw(values, options, uniform(options.seed, options.position, row));
  });
}

}  // namespace polyhead::nn
