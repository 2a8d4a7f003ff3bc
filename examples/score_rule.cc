// Attention with a score rule that this program defines: the farther a key is from the query, the smaller its score becomes, with another slope for each head.
// No tensor with a number for each pair of query and key is needed.
#include "check.h"
#include "polyhead/score_function.h"

using namespace polyhead;

int main() {
  // The new score is score - slope[n] tanh(|s - t| / 8). The two functions compute on vectors: the new score, and its derivative by the old score.
  const float slopes[] = {0.5F, 2.0F};
  const auto fading = score_rule([&](auto score, auto q, auto k, const ScoreTile& tile) { return score - score::tanh(score::abs(k - q) * 0.125F) * slopes[tile.head]; },
                                 [](auto score, auto, auto, const ScoreTile&) { return 0 * score + 1; });
  const Tensor q = example::waves({2, 50, 16}), k = example::waves({2, 50, 16}, 1.0), v = example::waves({2, 50, 16}, 2.0);
  Tensor out(DType::f32, {2, 50, 16}), lse(DType::f32, {2, 50});
  const SdpaOptions options{.mask = {.causal = Causal::top_left()}, .score_rule = fading};
  sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, options);
  Tensor d_q(DType::f32, q.shape()), d_k(DType::f32, k.shape()), d_v(DType::f32, v.shape());
  sdpa_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = v, .d_q = d_q, .d_k = d_k, .d_v = d_v}, options);
  example::show("out", out);

  // For comparison: the same rule as a bias, a tensor [N,T,S] with a number for each pair.
  Tensor bias(DType::f32, {2, 50, 50}), same(DType::f32, out.shape());
  for (std::int64_t i = 0; i < bias.numel(); ++i) {
    const double distance = static_cast<double>(i % 50 - i / 50 % 50);
    bias.data<float>()[i] = static_cast<float>(-slopes[i / 2500] * std::tanh(std::abs(distance) / 8));
  }
  sdpa_forward({.q = q, .k = k, .v = v, .out = same}, {.mask = {.causal = Causal::top_left()}, .bias = bias});
  example::Claims claims;
  double largest = 0;
  for (std::int64_t i = 0; i < out.numel(); ++i) largest = std::max(largest, static_cast<double>(std::abs(out.data<float>()[i] - same.data<float>()[i])));
  claims.add("the rule computes what a bias of every pair does", largest < 1e-5);
  return claims.status();
}
