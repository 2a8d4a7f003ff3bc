// Compares rows, top keys, statistics and pooled maps with the whole map, and the map with the output of the forward pass. Tests that requesting attention
// weights does not change the output.
#include "polyhead/maps.h"

#include <gmock/gmock.h>

#include "polyhead/workspace.h"
#include "support/each_backend.h"
#include "support/mapped_case.h"

namespace polyhead::test {
namespace {

constexpr std::uint64_t kMapSeeds = 150;

using Maps = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, Maps, testing::ValuesIn(backends()), name_of_backend);

TEST_P(Maps, DroppedMapTimesValuesIsTheOutput) {
  for (std::uint64_t seed = 0; seed < kMapSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Mapped m(seed, DType::f64, GetParam());
    const AttentionSizes& z = m.c.sizes;
    Tensor map(DType::f64, z.pairs());
    attention_map(m.input(), map, m.c.options, MapValue::dropped);
    const std::vector<double> dropped = to_doubles(map), v = to_doubles(m.c.v), out = to_doubles(m.o.out);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::int64_t j = static_cast<std::int64_t>(i) % z.v_width, row = static_cast<std::int64_t>(i) / z.v_width,
                         head = row / z.queries;
      const std::int64_t kv = head / z.heads() * z.kv_heads + head % z.heads() / z.group;
      double sum = 0;
      for (std::int64_t s = 0; s < z.keys; ++s) {
        sum += dropped[static_cast<std::size_t>(row * z.keys + s)] * v[static_cast<std::size_t>((kv * z.keys + s) * z.v_width + j)];
      }
      EXPECT_NEAR(sum, out[i], 1e-13);
    }
    if (HasFailure()) return;
  }
}

TEST_P(Maps, AttentionWeightsOfTheForwardPassAreTheProbabilities) {
  for (std::uint64_t seed = 0; seed < kMapSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Mapped m(seed, DType::f64, GetParam());
    const AttentionSizes& z = m.c.sizes;
    Tensor out(DType::f64, z.out());
    Tensor weights(DType::f64, z.pairs());
    m.c.forward({.out = out, .attention_weights = weights});
    const std::vector<double> p = to_doubles(weights);
    for (std::size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(p[i], static_cast<double>(m.expected.p[i]), 1e-13);
    EXPECT_TRUE(same_bits(out, m.o.out));
    if (HasFailure()) return;
  }
}

TEST_P(Maps, RequestingAttentionWeightsDoesNotChangeOutputAndLse) {
  Mapped m(3, DType::f32, GetParam());
  const Tensor out = Tensor::copy_of(m.o.out), lse = Tensor::copy_of(m.o.lse), q = Tensor::copy_of(m.c.q), k = Tensor::copy_of(m.c.k);
  Tensor map(DType::f64, m.c.sizes.pairs());
  attention_map(m.input(), map, m.c.options);
  EXPECT_TRUE(same_bits(m.o.out, out));
  EXPECT_TRUE(same_bits(m.o.lse, lse));
  EXPECT_TRUE(same_bits(m.c.q, q));
  EXPECT_TRUE(same_bits(m.c.k, k));
  Tensor again(DType::f32, out.shape());
  sdpa_forward({.q = m.c.q, .k = m.c.k, .v = m.c.v, .out = again}, m.c.options);
  EXPECT_TRUE(same_bits(again, out)) << "with or without lse";
}

TEST_P(Maps, ChosenRowsAreRowsOfTheMapInTheOrderAskedFor) {
  for (std::uint64_t seed = 0; seed < kMapSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Mapped m(seed, std::array{DType::f64, DType::f16}[seed % 2], GetParam());
    Random random(seed);
    std::vector<std::int64_t> queries;
    for (std::int64_t i = random.integer(0, 6); i > 0 && m.c.sizes.queries > 0; --i)
      queries.push_back(random.integer(0, m.c.sizes.queries - 1));
    for (const MapValue value : {MapValue::scaled_score, MapValue::probability}) {
      Tensor map(DType::f32, m.c.sizes.pairs());
      Tensor rows(DType::f32, m.c.sizes.with({m.c.sizes.heads(), static_cast<std::int64_t>(queries.size()), m.c.sizes.keys}));
      attention_map(m.input(), map, m.c.options, value);
      attention_map_rows(m.input(), queries, rows, m.c.options, value);
      for (std::size_t i = 0; i < queries.size(); ++i) {
        EXPECT_TRUE(same_bits(rows.view().select(-2, static_cast<std::int64_t>(i)), map.view().select(-2, queries[i])));
      }
    }
    if (HasFailure()) return;
  }
}

TEST(Maps, QueryOutOfRangeIsAnError) {
  const Tensor q(DType::f32, {1, 3, 2});
  Tensor rows(DType::f32, {1, 1, 3});
  for (const std::int64_t query : {-1, 3}) {
    const std::array queries{query};
    EXPECT_EQ(error_message([&] { attention_map_rows({.q = q, .k = q}, queries, rows); }),
              "attention_map_rows: there is no query " + std::to_string(query) + "; queries lie in [0,3)");
  }
}

TEST_P(Maps, LongMapsAreWholeAcrossBlocksOfRows) {
  Random random(1);
  AttentionCase c = case_of(random, DType::f64, {.lead = {1}, .group = 2, .queries = 77, .keys = 41, .qk_width = 4, .v_width = 1}, GetParam());
  const AttentionOutputs o = c.make_outputs();
  c.forward(o);
  Tensor map(DType::f64, c.sizes.pairs());
  attention_map({.q = c.q, .k = c.k}, map, c.options);
  EXPECT_TRUE(near(map, to_tensor(naive_attention(c).p, c.sizes.pairs()), 1e-14));
}

using TopKeys = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, TopKeys, testing::ValuesIn(backends()), name_of_backend);

TEST_P(TopKeys, AreTheLargestFirstWithTiesToTheSmallerKey) {
  for (std::uint64_t seed = 0; seed < kMapSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Mapped m(seed, DType::f64, GetParam());
    const AttentionSizes& z = m.c.sizes;
    const std::int64_t count = Random(seed).integer(0, z.keys);
    Tensor map(DType::f64, z.pairs()), p(DType::f64, z.with({z.heads(), z.queries, count})), key(DType::i64, p.shape());
    attention_map(m.input(), map, m.c.options);
    attention_top_keys(m.input(), p, key, m.c.options);
    for (std::int64_t row = 0; row < m.heads() * z.queries; ++row) {
      std::vector<std::pair<double, std::int64_t>> order;
      for (std::int64_t s = 0; s < z.keys; ++s) order.emplace_back(-map.data<double>()[row * z.keys + s], s);
      std::sort(order.begin(), order.end());
      for (std::int64_t i = 0; i < count; ++i) {
        EXPECT_EQ(key.data<std::int64_t>()[row * count + i], order[static_cast<std::size_t>(i)].second);
        EXPECT_EQ(p.data<double>()[row * count + i], -order[static_cast<std::size_t>(i)].first);
      }
    }
    if (HasFailure()) return;
  }
  const Tensor same(DType::f32, {1, 2, 3});  // both keys are equal, so both have probability 1/2
  Tensor p(DType::f32, {1, 2, 2}), key(DType::i64, {1, 2, 2});
  attention_top_keys({.q = same, .k = same}, p, key);
  EXPECT_THAT(to_doubles(key), testing::ElementsAre(0, 1, 0, 1));
  Tensor too_many(DType::f32, {1, 2, 3}), too_many_keys(DType::i64, {1, 2, 3});
  EXPECT_THAT(error_message([&] { attention_top_keys({.q = same, .k = same}, too_many, too_many_keys); }),
              testing::AllOf(testing::HasSubstr("3 keys"), testing::HasSubstr("S = 2")));
}

// Top keys of long rows equal those of the sorted row. Some keys are repeated, so that their probabilities are equal.
TEST_P(TopKeys, OfLongRowsAreThoseOfTheSortedRow) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::int64_t keys = random.integer(200, 700), count = std::min(keys, random.pick<std::int64_t>({1, 2, 5, 16, 60, 700}));
    AttentionCase c = case_of(random, std::array{DType::f64, DType::f32}[seed % 2], {.queries = 30, .keys = keys, .qk_width = 3, .v_width = 1}, GetParam());
    if (seed % 3 > 0) {  // make all keys equal, or all but 40 of them
      const TensorView k = c.keep(Tensor::copy_of(c.k.slice(-2, 0, 1).expand(c.sizes.k())));
      const Tensor others = random.tensor(c.dtype, {1, 40, 3}, -2, 2);
      if (seed % 3 == 2) copy(others, k.slice(-2, 50, 90));
      c.k = k;
    }
    if (seed % 4 == 1) c.options.mask.causal = Diagonal::offset(random.integer(-10, 100));
    if (seed % 4 == 3) c.options.mask.window = {.left = random.integer(10, 150), .right = 10};
    Tensor map(DType::f64, c.sizes.pairs()), p(DType::f64, {1, 30, count}), key(DType::i64, p.shape());
    attention_map_part({.q = c.q, .k = c.k}, numbers(30), numbers(keys), map, c.options);
    attention_top_keys({.q = c.q, .k = c.k}, p, key, c.options);
    for (std::int64_t t = 0; t < 30; ++t) {
      std::vector<std::pair<double, std::int64_t>> order;
      for (std::int64_t s = 0; s < keys; ++s) order.emplace_back(-map.data<double>()[t * keys + s], s);
      std::sort(order.begin(), order.end());
      for (std::int64_t i = 0; i < count; ++i) {
        EXPECT_EQ(key.data<std::int64_t>()[t * count + i], order[static_cast<std::size_t>(i)].second) << t << " " << i;
        EXPECT_EQ(p.data<double>()[t * count + i], -order[static_cast<std::size_t>(i)].first);
      }
    }
    if (HasFailure()) return;
  }
}

using Statistics = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, Statistics, testing::ValuesIn(backends()), name_of_backend);

TEST_P(Statistics, AreMeansOverTheRowsThatAreNotEmpty) {
  int empty_rows = 0, empty_heads = 0;
  for (std::uint64_t seed = 0; seed < 2 * kMapSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Mapped m(seed, DType::f64, GetParam());
    const AttentionSizes& z = m.c.sizes;
    std::array<Tensor, 7> got;
    for (Tensor& tensor : got) tensor = Tensor(DType::f64, z.with({z.heads()}));
    attention_statistics(m.input(),
                         {.entropy = got[0],
                          .largest = got[1],
                          .distance = got[2],
                          .first_key = got[3],
                          .previous_key = got[4],
                          .same_key = got[5],
                          .next_key = got[6]},
                         m.c.options);
    for (std::int64_t head = 0; head < m.heads(); ++head) {
      std::array<double, 7> sums{};
      std::int64_t rows = 0;
      for (std::int64_t t = 0; t < z.queries; ++t) {
        double total = 0, largest = 0;
        for (std::int64_t s = 0; s < z.keys; ++s) total += m.p(head, t, s);
        if (total == 0) {
          ++empty_rows;
          continue;
        }
        ++rows;
        const auto [first_query, first_key] = document_start(m.c.options.mask, t);
        const std::int64_t t_in = t - first_query;
        for (std::int64_t s_packed = 0; s_packed < z.keys; ++s_packed) {
          const double p = m.p(head, t, s_packed);
          const std::int64_t s = s_packed - first_key;
          if (p > 0) sums[0] -= p * std::log(p);
          largest = std::max(largest, p);
          sums[2] += p * static_cast<double>(s < t_in ? t_in - s : s - t_in);
          if (s == 0) sums[3] += p;
          if (s == t_in - 1) sums[4] += p;
          if (s == t_in) sums[5] += p;
          if (s == t_in + 1) sums[6] += p;
        }
        sums[1] += largest;
      }
      empty_heads += rows == 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_NEAR(got[i].data<double>()[head], rows > 0 ? sums[i] / static_cast<double>(rows) : 0, 1e-12) << i;
      }
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(empty_rows, 50);
  EXPECT_GT(empty_heads, 10);
}

TEST_P(Statistics, ANaNReachesEveryStatistic) {
  Tensor q = Random(1).tensor(DType::f32, {1, 3, 4});
  q.data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  Tensor largest(DType::f32, {1}), entropy(DType::f32, {1});
  attention_statistics({.q = q, .k = q}, {.entropy = entropy, .largest = largest}, {.backend = GetParam()});
  EXPECT_TRUE(std::isnan(largest.data<float>()[0]));
  EXPECT_TRUE(std::isnan(entropy.data<float>()[0]));
}

TEST(Statistics, ASingleStatisticMayBeRequested) {
  const Tensor q = Random(1).tensor(DType::f32, {2, 3, 4});
  Tensor largest(DType::f32, {2}), all(DType::f32, {2}), entropy(DType::f32, {2});
  attention_statistics({.q = q, .k = q}, {.largest = largest});
  attention_statistics({.q = q, .k = q}, {.entropy = entropy, .largest = all});
  EXPECT_TRUE(same_bits(largest, all));
  EXPECT_GT(largest.data<float>()[0], 0.3f);
}

using PooledMap = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, PooledMap, testing::ValuesIn(backends()), name_of_backend);

TEST_P(PooledMap, ElementIsTheMeanOfItsBlock) {
  for (std::uint64_t seed = 0; seed < kMapSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Mapped m(seed, DType::f64, GetParam());
    Random random(seed);
    const AttentionSizes& z = m.c.sizes;
    const std::int64_t h = random.integer(0, z.queries), w = random.integer(0, z.keys);
    const StridedTensor pooled = random.empty_strided(DType::f64, z.with({z.heads(), h, w}));
    attention_pooled_map(m.input(), pooled, m.c.options);
    const std::vector<double> pixels = to_doubles(pooled);
    for (std::size_t at = 0; at < pixels.size(); ++at) {
      const auto index = static_cast<std::int64_t>(at);
      const std::int64_t j = index % w, i = index / w % h, head = index / w / h;
      double sum = 0;
      std::int64_t count = 0;
      for (std::int64_t t = i * z.queries / h; t < (i + 1) * z.queries / h; ++t) {
        for (std::int64_t s = j * z.keys / w; s < (j + 1) * z.keys / w; ++s, ++count) sum += m.p(head, t, s);
      }
      EXPECT_NEAR(pixels[at], sum / static_cast<double>(count), 1e-13);
    }
    EXPECT_TRUE(pooled.padding_is_intact());
    if (HasFailure()) return;
  }
}

TEST(PooledMap, LargerThanTheMapIsAnError) {
  const Tensor q(DType::f32, {1, 3, 2});
  Tensor pooled(DType::f32, {1, 4, 3});
  EXPECT_THAT(error_message([&] { attention_pooled_map({.q = q, .k = q}, pooled); }),
              testing::AllOf(testing::HasSubstr("[4,3]"), testing::HasSubstr("[3,3]")));
}

TEST_P(PooledMap, SumsAndMaximaAreThoseOfItsBlocks) {
  for (std::uint64_t seed = 0; seed < kMapSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Mapped m(seed, DType::f64, GetParam());
    Random random(seed);
    const AttentionSizes& z = m.c.sizes;
    const std::int64_t h = random.integer(0, z.queries), w = random.integer(0, z.keys);
    Tensor sum(DType::f64, z.with({z.heads(), h, w})), largest(DType::f64, sum.shape());
    attention_pooled_map(m.input(), sum, m.c.options, Pooling::sum);
    attention_pooled_map(m.input(), largest, m.c.options, Pooling::largest);
    for (std::int64_t at = 0; at < sum.numel(); ++at) {
      const std::int64_t j = at % w, i = at / w % h, head = at / w / h;
      double total = 0, most = 0;
      for (std::int64_t t = i * z.queries / h; t < (i + 1) * z.queries / h; ++t) {
        for (std::int64_t s = j * z.keys / w; s < (j + 1) * z.keys / w; ++s) total += m.p(head, t, s), most = std::max(most, m.p(head, t, s));
      }
      EXPECT_NEAR(sum.data<double>()[at], total, 1e-12);
      EXPECT_NEAR(largest.data<double>()[at], most, 1e-13);
    }
    if (HasFailure()) return;
  }
}

TEST(Maps, NeedOnlyQueriesAndKeys) {
  const Tensor q = Tensor::of<float>({1, 1, 1}, {3}), k = Tensor::of<float>({1, 2, 1}, {1, 1});
  Tensor map(DType::f32, {1, 1, 2});
  attention_map({.q = q, .k = k}, map);
  EXPECT_THAT(to_doubles(map), testing::ElementsAre(0.5, 0.5));
  attention_map({.q = q, .k = k}, map, {}, MapValue::score);
  EXPECT_THAT(to_doubles(map), testing::ElementsAre(3, 3));
}

TEST(Maps, KeepTheirScratchInTheWorkspace) {
  Random random(1);
  const Tensor q = random.tensor(DType::f32, {1, 3, 64}, -1, 1), k = random.tensor(DType::f32, {1, 2000, 64}, -1, 1);
  Tensor map(DType::f32, {1, 3, 2000}), expected = map;
  const SdpaOptions cpu{.backend = &find_backend("cpu")};
  attention_map({.q = q, .k = k}, expected, cpu);
  const Workspace workspace;
  SdpaOptions options = cpu;
  options.workspace = &workspace;
  attention_map({.q = q, .k = k}, map, options);
  EXPECT_GT(workspace.idle_bytes(), 2000 * 64 * 4);
  EXPECT_TRUE(same_bits(map, expected));
}

}  // namespace
}  // namespace polyhead::test
