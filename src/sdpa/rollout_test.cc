// Compares attention_rollout() with the product of the matrices A_l, computed from naive attention weights.
#include <gmock/gmock.h>

#include "polyhead/maps.h"
#include "support/attention_case.h"
#include "support/each_backend.h"

namespace polyhead::test {
namespace {

using Rollout = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, Rollout, testing::ValuesIn(backends()), name_of_backend);

// Returns the rows of A_L ... A_1 for all queries, [B,T,T], from the naive probabilities [B,N,T,T] of each layer.
Matrix product_of(const std::vector<Matrix>& layers, std::int64_t batch, std::int64_t heads, std::int64_t positions, Real residual) {
  const auto size = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  Matrix result(size(batch * positions * positions));
  for (std::int64_t b = 0; b < batch; ++b) {
    Matrix r(size(positions * positions));
    for (std::int64_t t = 0; t < positions; ++t) r[size(t * positions + t)] = 1;
    for (const Matrix& p : layers) {
      Matrix next(r.size());
      for (std::int64_t t = 0; t < positions; ++t) {
        std::vector<Real> a(size(positions));
        a[size(t)] = residual;
        Real sum = 0;
        for (std::int64_t s = 0; s < positions; ++s) {
          for (std::int64_t n = 0; n < heads; ++n) a[size(s)] += (1 - residual) * p[size(((b * heads + n) * positions + t) * positions + s)] / static_cast<Real>(heads);
          sum += a[size(s)];
        }
        for (std::int64_t s = 0; s < positions && sum > 0; ++s) {
          for (std::int64_t j = 0; j < positions; ++j) next[size(t * positions + j)] += a[size(s)] / sum * r[size(s * positions + j)];
        }
      }
      r = next;
    }
    std::copy(r.begin(), r.end(), result.begin() + b * positions * positions);
  }
  return result;
}

TEST_P(Rollout, IsTheProductOfTheLayersMatrices) {
  int compared = 0, sinks = 0, few = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const DType dtype = std::array{DType::f64, DType::f32, DType::bf16}[seed % 3];
    AttentionSizes sizes = draw_sizes(random);
    sizes.queries = sizes.keys = std::max(sizes.keys, std::int64_t{1});
    AttentionCase c = draw_case(random, dtype, sizes);
    c.options.backend = GetParam();
    const AttentionSizes& z = c.sizes;
    if (z.heads() == 0 || numel(z.lead) == 0 || z.queries == 0) continue;
    const Real residual = std::array{0.5, 0.0, 0.3, 1.0}[seed % 4];
    std::vector<MapsInput> layers;
    std::vector<Matrix> p;
    for (int l = 0; l < 3; ++l) {
      layers.push_back({.q = c.q, .k = c.k});
      p.push_back(naive_attention(c).p);
      c.draw_inputs(random);
    }
    std::vector<std::int64_t> queries;
    for (std::int64_t i = random.integer(0, 5); i > 0; --i) queries.push_back(random.integer(0, z.queries - 1));
    if (random.integer(0, 2) == 0) {  // choose all queries, in reversed order
      queries.resize(static_cast<std::size_t>(z.queries));
      for (std::size_t r = 0; r < queries.size(); ++r) queries[r] = z.queries - 1 - static_cast<std::int64_t>(r);
    }
    few += 2 * std::ssize(queries) < z.queries;
    const auto rows = static_cast<std::int64_t>(queries.size());
    const StridedTensor out = random.empty_strided(DType::f64, z.with({rows, z.queries}));
    attention_rollout(layers, queries, out, c.options, static_cast<double>(residual));
    const Matrix expected = product_of(p, numel(z.lead), z.heads(), z.queries, residual);
    const std::vector<double> got = to_doubles(out);
    for (std::size_t at = 0; at < got.size(); ++at) {
      const auto index = static_cast<std::int64_t>(at);
      const std::int64_t s = index % z.queries, r = index / z.queries % rows, b = index / z.queries / rows;
      const Real wanted = expected[static_cast<std::size_t>((b * z.queries + queries[static_cast<std::size_t>(r)]) * z.queries + s)];
      EXPECT_NEAR(got[at], static_cast<double>(wanted), dtype == DType::f64 ? 1e-12 : 2e-5);
      ++compared, sinks += static_cast<bool>(c.options.sink);
    }
    EXPECT_TRUE(out.padding_is_intact());
    if (HasFailure()) return;
  }
  EXPECT_GT(compared, 1000);
  EXPECT_GT(sinks, 50);
  EXPECT_GT(few, 50);
}

TEST(RolloutMessages, SayWhatIsAllowed) {
  const Tensor q(DType::f32, {2, 3, 4}), k(DType::f32, {2, 5, 4}), longer(DType::f32, {2, 5, 4});
  Tensor out(DType::f32, {1, 3});
  const std::array<std::int64_t, 1> zero{0}, three{3};
  const auto message = [&](std::vector<MapsInput> layers, std::span<const std::int64_t> queries, double residual) {
    return error_message([&] { attention_rollout(layers, queries, out, {}, residual); });
  };
  EXPECT_EQ(message({}, zero, 0.5), "attention_rollout: there are no layers");
  EXPECT_EQ(message({{.q = q, .k = q}}, zero, 1.5), "attention_rollout: residual is 1.5; it must lie in [0,1]");
  EXPECT_EQ(message({{.q = q, .k = k}}, zero, 0.5), "attention_rollout: q is [2,3,4], k [2,5,4]; self-attention has T = S");
  EXPECT_THAT(message({{.q = q, .k = q}, {.q = longer, .k = longer}}, zero, 0.5), testing::HasSubstr("all layers must have the same leading dimensions and T, only N and H may differ"));
  EXPECT_EQ(message({{.q = q, .k = q}}, three, 0.5), "attention_rollout: there is no query 3; queries lie in [0,3)");
}

}  // namespace
}  // namespace polyhead::test
