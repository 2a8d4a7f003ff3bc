// Compares operations that return a part or a reduction of a map with the whole map: rectangles, windows, mass on sets of keys, sums over queries, and the
// divergence of heads.
#include <gmock/gmock.h>

#include <thread>

#include "polyhead/maps.h"
#include "polyhead/workspace.h"
#include "support/each_backend.h"
#include "support/mapped_case.h"

namespace polyhead::test {
namespace {

constexpr std::uint64_t kSeeds = 150;

using MapParts = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, MapParts, testing::ValuesIn(backends()), name_of_backend);

TEST_P(MapParts, AreElementsOfTheMapInTheOrderAskedFor) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Mapped m(seed, std::array{DType::f64, DType::bf16}[seed % 2], GetParam());
    Random random(seed);
    const AttentionSizes& z = m.c.sizes;
    std::vector<std::int64_t> queries, keys;
    for (std::int64_t i = random.integer(0, 6); i > 0 && z.queries > 0; --i) queries.push_back(random.integer(0, z.queries - 1));
    for (std::int64_t i = random.integer(0, 6); i > 0 && z.keys > 0; --i) keys.push_back(random.integer(0, z.keys - 1));
    const auto rows = static_cast<std::int64_t>(queries.size()), columns = static_cast<std::int64_t>(keys.size());
    for (const MapValue value : {MapValue::scaled_score, MapValue::score, MapValue::probability, MapValue::dropped}) {
      Tensor map(DType::f64, z.pairs());
      const StridedTensor part = random.empty_strided(DType::f64, z.with({z.heads(), rows, columns}));
      attention_map(m.input(), map, m.c.options, value);
      attention_map_part(m.input(), queries, keys, part, m.c.options, value);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) {
          const auto chosen = [](const auto& view, std::int64_t t, std::int64_t s) { return ConstTensorView(view).select(-1, s).select(-1, t); };
          EXPECT_TRUE(same_bits(chosen(part.view(), i, j), chosen(map.view(), queries[static_cast<std::size_t>(i)], keys[static_cast<std::size_t>(j)])));
        }
      }
      EXPECT_TRUE(part.padding_is_intact());
    }
    if (HasFailure()) return;
  }
}

TEST_P(MapParts, WindowsAreTheBandAroundTheDiagonalOfEachDocument) {
  int documents = 0;
  for (std::uint64_t seed = 0; seed < 2 * kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Mapped m(seed, DType::f64, GetParam());
    Random random(seed);
    const AttentionSizes& z = m.c.sizes;
    const std::int64_t first = random.integer(-std::min<std::int64_t>(5, z.queries + z.keys), std::min<std::int64_t>(3, z.queries + z.keys)), width = random.integer(0, 8);
    const StridedTensor windows = random.empty_strided(DType::f64, z.with({z.heads(), z.queries, width}));
    attention_windows(m.input(), first, windows, m.c.options);
    const std::vector<double> got = to_doubles(windows);
    for (std::size_t at = 0; at < got.size(); ++at) {
      const auto index = static_cast<std::int64_t>(at);
      const std::int64_t i = index % width, t = index / width % z.queries, head = index / width / z.queries;
      const auto [first_query, first_key] = document_start(m.c.options.mask, t);
      documents += first_query > 0;
      // If a column of the window lies in another document, its probability is 0.
      const std::int64_t s = first_key + t - first_query + first + i;
      EXPECT_NEAR(got[at], s >= first_key && s < z.keys ? m.p(head, t, s) : 0, 1e-13) << t << " " << i;
    }
    EXPECT_TRUE(windows.padding_is_intact());
    if (HasFailure()) return;
  }
  EXPECT_GT(documents, 50);
}

TEST_P(MapParts, MassIsTheSumOfProbabilitiesOverTheKeysOfASet) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Mapped m(seed, DType::f64, GetParam());
    Random random(seed);
    const AttentionSizes& z = m.c.sizes;
    const std::int64_t sets = random.integer(0, 3);
    Shape shape = z.with({sets, z.keys});
    for (int axis = 0; axis < shape.size() - 2; ++axis) shape[axis] = random.coin() ? 1 : shape[axis];
    if (random.integer(0, 3) == 0) shape[-1] = 1;  // broadcast one boolean over all keys, so that the set holds all keys or none
    const Tensor in_set = random.tensor(DType::boolean, random.coin() ? shape : shape.last(sets == 1 && random.coin() ? 1 : 2));
    const StridedTensor mass = random.empty_strided(DType::f64, z.with({z.heads(), z.queries, sets}));
    attention_key_mass(m.input(), in_set, mass, m.c.options);
    const std::vector<double> got = to_doubles(mass), member = to_doubles(in_set.view().expand(z.with({sets, z.keys})));
    for (std::size_t at = 0; at < got.size(); ++at) {
      const auto index = static_cast<std::int64_t>(at);
      const std::int64_t set = index % sets, t = index / sets % z.queries, head = index / sets / z.queries, b = head / z.heads();
      double sum = 0;
      for (std::int64_t s = 0; s < z.keys; ++s) {
        if (member[static_cast<std::size_t>((b * sets + set) * z.keys + s)] != 0) sum += m.p(head, t, s);
      }
      EXPECT_NEAR(got[at], sum, 1e-13);
    }
    if (HasFailure()) return;
  }
}

TEST_P(MapParts, KeySumsAreSumsOverAllQueries) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Mapped m(seed, DType::f64, GetParam());
    const AttentionSizes& z = m.c.sizes;
    Tensor sums(DType::f64, z.with({z.heads(), z.keys}));
    attention_key_sums(m.input(), sums, m.c.options);
    for (std::int64_t at = 0; at < sums.numel(); ++at) {
      double sum = 0;
      for (std::int64_t t = 0; t < z.queries; ++t) sum += m.p(at / z.keys, t, at % z.keys);
      EXPECT_NEAR(sums.data<double>()[at], sum, 1e-12);
    }
    if (HasFailure()) return;
  }
}

TEST_P(MapParts, DivergenceIsTheMeanJensenShannonDivergenceOfTheRowsOfTwoHeads) {
  int sinks = 0, pairs = 0;
  for (std::uint64_t seed = 0; seed < 2 * kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Mapped m(seed, std::array{DType::f64, DType::f32}[seed % 2], GetParam());
    const AttentionSizes& z = m.c.sizes;
    Tensor got(DType::f64, z.with({z.heads(), z.heads()}));
    attention_divergence(m.input(), got, m.c.options);
    for (std::int64_t at = 0; at < got.numel(); ++at) {
      const std::int64_t m_head = at % z.heads(), n = at / z.heads() % z.heads(), b = at / z.heads() / z.heads();
      Real total = 0;
      int rows = 0;
      for (std::int64_t t = 0; t < z.queries; ++t) {
        // The expected divergence is half the sum of the two Kullback-Leibler divergences to the mean of both rows. The sink counts as one more key.
        std::vector<Real> p, q;
        Real sum_p = 0, sum_q = 0;
        for (std::int64_t s = 0; s < z.keys; ++s) {
          p.push_back(static_cast<Real>(m.p(b * z.heads() + n, t, s))), sum_p += p.back();
          q.push_back(static_cast<Real>(m.p(b * z.heads() + m_head, t, s))), sum_q += q.back();
        }
        if (sum_p == 0 || sum_q == 0) continue;
        if (m.c.options.sink) p.push_back(std::max<Real>(0, 1 - sum_p)), q.push_back(std::max<Real>(0, 1 - sum_q)), ++sinks;
        ++rows;
        for (std::size_t s = 0; s < p.size(); ++s) {
          const Real mean = (p[s] + q[s]) / 2;
          if (p[s] > 0) total += p[s] * std::log(p[s] / mean) / 2;
          if (q[s] > 0) total += q[s] * std::log(q[s] / mean) / 2;
        }
      }
      pairs += n != m_head && rows > 0;
      EXPECT_NEAR(got.data<double>()[at], static_cast<double>(rows > 0 ? total / rows : 0), m.c.dtype == DType::f64 ? 1e-12 : 4e-6) << at;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(sinks, 20);
  EXPECT_GT(pairs, 100);
}

// Sums over more rows than MapWalk computes at a time have the same bits on several threads as on one.
TEST_P(MapParts, OfManyRowsDoNotDependOnThreads) {
  Random random(5);
  AttentionCase c = case_of(random, DType::f32, {.lead = {2}, .group = 3, .queries = 1300, .keys = 37, .qk_width = 4, .v_width = 1}, GetParam());
  c.options.mask.causal = Diagonal::offset(-900);
  const MapsInput input{.q = c.q, .k = c.k};
  const auto all = [&](int threads) {
    LimitedThreads executor(threads);
    SdpaOptions options = c.options;
    options.executor = &executor;
    std::vector<Tensor> results;
    results.reserve(8);
    const auto next = [&](const Shape& shape) { return results.emplace_back(DType::f64, shape).view(); };
    attention_key_sums(input, next({2, 3, 37}), options);
    attention_pooled_map(input, next({2, 3, 7, 5}), options);
    attention_pooled_map(input, next({2, 3, 2, 5}), options, Pooling::largest);
    attention_divergence(input, next({2, 3, 3}), options);
    attention_windows(input, -1, next({2, 3, 1300, 3}), options);
    attention_statistics(input, {.entropy = next({2, 3})}, options);
    return results;
  };
  const std::vector<Tensor> one = all(1), several = all(3);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(same_bits(one[i], several[i])) << i;
  const FullResults expected = naive_attention(c);
  for (std::int64_t at = 0; at < one[0].numel(); ++at) {
    Real sum = 0;
    for (std::int64_t t = 0; t < 1300; ++t) sum += expected.p[static_cast<std::size_t>((at / 37 * 1300 + t) * 37 + at % 37)];
    EXPECT_NEAR(one[0].data<double>()[at], static_cast<double>(sum), 1e-3);
  }
}

TEST_P(MapParts, ReportProgressInTheCallingThreadAndStopAtAnException) {
  const Tensor q = Random(1).tensor(DType::f32, {2, 1100, 4}), k = Random(2).tensor(DType::f32, {2, 5, 4});
  Tensor sums(DType::f32, {2, 5});
  std::vector<std::int64_t> reports;
  const std::thread::id caller = std::this_thread::get_id();
  MapsInput input{.q = q, .k = k, .progress = [&](std::int64_t done, std::int64_t total) {
                    EXPECT_EQ(total, 2200);
                    EXPECT_EQ(std::this_thread::get_id(), caller);
                    reports.push_back(done);
                  }};
  attention_key_sums(input, sums, {.backend = GetParam()});
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports.back(), 2200);
  EXPECT_TRUE(std::is_sorted(reports.begin(), reports.end()));
  EXPECT_EQ(std::adjacent_find(reports.begin(), reports.end()), reports.end());
  LimitedThreads one(1);
  int calls = 0;
  input.progress = [&](std::int64_t, std::int64_t) { if (++calls == 2) throw std::runtime_error("enough"); };
  EXPECT_THROW(attention_key_sums(input, sums, {.backend = GetParam(), .executor = &one}), std::runtime_error);
  EXPECT_EQ(calls, 2);
}

TEST(MapParts, MessagesSayWhatIsAllowed) {
  const Tensor q(DType::f32, {2, 3, 4}), k(DType::f32, {2, 5, 4}), sets(DType::boolean, {2, 4}), numbers(DType::f32, {2, 5});
  const MapsInput input{.q = q, .k = k};
  Tensor out(DType::f32, {2, 3, 2});
  const std::array<std::int64_t, 1> five{5}, zero{0};
  EXPECT_EQ(error_message([&] { attention_map_part(input, zero, five, out); }), "attention_map_part: there is no key 5; keys lie in [0,5)");
  EXPECT_EQ(error_message([&] { attention_map_part(input, five, zero, out); }), "attention_map_part: there is no query 5; queries lie in [0,3)");
  EXPECT_EQ(error_message([&] { attention_windows(input, 9, out); }), "attention_windows: first is 9; it must lie in [-(T + S),T + S] = [-8,8]");
  EXPECT_EQ(error_message([&] { attention_key_mass(input, sets, out); }), "attention_key_mass: key_sets is [2,4]; it must be [S], or broadcast to [*,M,S] = [2,5]");
  EXPECT_EQ(error_message([&] { attention_key_mass(input, numbers, out); }), "attention_key_mass: key_sets is float32; it must be bool");
  EXPECT_THAT(error_message([&] { attention_key_sums(input, out); }), testing::HasSubstr("attention_key_sums: out is [2,3,2]; it must be [*,N,S] = [2,5]"));
  EXPECT_THAT(error_message([&] { attention_divergence(input, out); }), testing::HasSubstr("attention_divergence: out is [2,3,2]; it must be [*,N,N] = [2,2]"));
}

}  // namespace
}  // namespace polyhead::test
