// Tests that a masked key has no effect, and that a NaN in a value reaches the rows that attend to it and no other row. Also tests scores of -inf and empty rows.
#include "polyhead/maps.h"
#include "support/compare_outputs.h"
#include "support/each_backend.h"
#include "support/second_derivatives.h"

namespace polyhead::test {
namespace {

// A random problem whose inputs are contiguous and writable, with a bias [*,N,T,S] or a relative bias.
struct Writable {
  AttentionCase c;
  TensorView q, k, v, bias, relative_bias;

  explicit Writable(std::uint64_t seed, DType dtype = DType::f64) {
    Random random(seed);
    c = draw_case(random, dtype);
    own(random);
  }
  Writable(const AttentionSizes& sizes, std::uint64_t seed, DType dtype = DType::f64) {
    Random random(seed);
    c = case_of(random, dtype, sizes);
    own(random);
  }

  void set(TensorView view, std::int64_t index, double value) const {
    fill(view.reshape({view.numel()}).slice(0, index, index + 1), value);
  }

 private:
  void own(Random& random) {
    c.q = q = c.keep(Tensor::copy_of(c.q));
    c.k = k = c.keep(Tensor::copy_of(c.k));
    c.v = v = c.keep(Tensor::copy_of(c.v));
    if (RelativeBias& relative = c.options.relative_bias) {
      relative_bias = c.keep(Tensor::copy_of(relative.parameter()));
      (relative.slopes ? relative.slopes : relative.table) = relative_bias;
      return;
    }
    c.table = {};
    c.options.bias = bias = c.keep(random.tensor(c.dtype, c.sizes.pairs(), -2, 2));
  }
};

// Returns which pairs (query, key) affect the output: attended pairs, and all pairs of an empty row if empty_rows lets such a row attend to every key.
std::vector<bool> used_pairs(const AttentionCase& c) {
  std::vector<bool> used = full_matrices(c.q, c.k, c.v, c.d_out, c.options).keep;
  const auto keys = static_cast<std::ptrdiff_t>(c.sizes.keys);
  if (c.options.empty_rows == EmptyRows::zero || keys == 0) return used;
  for (auto row = used.begin(); row != used.end(); row += keys) {
    if (std::find(row, row + keys, true) == row + keys) std::fill(row, row + keys, true);
  }
  return used;
}

// Returns the elements of the relative bias that no pair of `used` reads.
std::vector<std::int64_t> unused_elements(const AttentionCase& c, const std::vector<bool>& used) {
  const RelativeBias& bias = c.options.relative_bias;
  const std::int64_t per_head = bias.slopes ? 1 : bias.table.extent(1);
  const PairRule rule(c.options.mask, c.sizes.pairs());
  std::vector<bool> read(static_cast<std::size_t>(bias.parameter().numel()));
  for (std::size_t pair = 0; pair < used.size(); ++pair) {
    const auto row = static_cast<std::int64_t>(pair) / c.sizes.keys, s = static_cast<std::int64_t>(pair) % c.sizes.keys;
    const std::int64_t t = row % c.sizes.queries, head = row / c.sizes.queries;
    if (used[pair] && rule.same_document(t, s))
      read[static_cast<std::size_t>(head % c.sizes.heads() * per_head + relative_pair(rule, c.options, head / c.sizes.heads(), t, s).bucket)] = true;
  }
  std::vector<std::int64_t> unused;
  for (std::size_t i = 0; i < read.size(); ++i) {
    if (!read[i]) unused.push_back(static_cast<std::int64_t>(i));
  }
  return unused;
}

struct Everything {
  AttentionOutputs o;
  std::vector<Tensor> maps;
  SecondOutputs second;
};

void sdpa_jvp_and_backward_backward(AttentionCase& c, Everything& all) {
  SecondCase second{.c = std::move(c), .tangents = {}, .forward = all.o};
  const SdpaOptions& o = second.c.options;
  second.tangents = {.q = second.c.q, .k = second.c.k, .v = second.c.v, .bias = o.bias, .relative_bias = o.relative_bias.parameter(), .sink = o.sink};
  if (o.sink) second.tangents.sink = second.c.keep(Tensor(o.sink.dtype(), o.sink.shape()));
  all.second = second.make_outputs();
  second.jvp(all.second), second.backward_backward(all.second);
  c = std::move(second.c);
}

Everything compute(AttentionCase& c, const Backend* backend) {
  c.options.backend = backend;
  Everything all{c.make_outputs(), {}, {}};
  c.run(all.o);
  // Each input is also used as its own tangent, so if a masked key is NaN, its tangent is NaN too.
  sdpa_jvp_and_backward_backward(c, all);
  for (const MapValue value : {MapValue::score, MapValue::probability, MapValue::dropped}) {
    attention_map({.q = c.q, .k = c.k}, all.maps.emplace_back(DType::f64, c.sizes.pairs()), c.options, value);
  }
  return all;
}

void expect_same(const Everything& a, const Everything& b) {
  expect_same_bits(b.o, a.o);
  const auto first = a.second.list(), second = b.second.list();
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i].second) {
      EXPECT_TRUE(same_bits(second[i].second, first[i].second)) << "second derivatives: " << first[i].first;
    }
  }
  for (std::size_t i = 0; i < a.maps.size(); ++i) EXPECT_TRUE(same_bits(b.maps[i], a.maps[i])) << "map " << i;
}

using MaskedKeys = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, MaskedKeys, testing::ValuesIn(backends()), name_of_backend);

TEST_P(MaskedKeys, TheirContentsChangeNoBitOfAnyResult) {
  int poisoned_keys = 0, poisoned_pairs = 0, poisoned_buckets = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Writable w(seed, std::array{DType::f64, DType::f32, DType::bf16, DType::f16}[seed % 4]);
    const AttentionSizes& z = w.c.sizes;
    const std::vector<bool> used = used_pairs(w.c);
    const Everything before = compute(w.c, GetParam());

    const double poison = std::array{kNaN, kInfinity, -kInfinity}[seed % 3];
    const std::int64_t batch = numel(z.lead);
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t key = 0; key < z.kv_heads * z.keys; ++key) {
        const std::int64_t kv = key / z.keys, s = key % z.keys;
        bool seen = false;
        for (std::int64_t row = 0; row < z.group * z.queries; ++row) {
          const std::int64_t pair = ((b * z.heads() + kv * z.group) * z.queries + row) * z.keys + s;
          seen |= used[static_cast<std::size_t>(pair)];
          if (used[static_cast<std::size_t>(pair)] || !w.bias) continue;
          w.set(w.bias, pair, poison);
          ++poisoned_pairs;
        }
        if (seen) continue;
        ++poisoned_keys;
        const std::int64_t at = (b * z.kv_heads + kv) * z.keys + s;
        for (std::int64_t h = 0; h < z.qk_width; ++h) w.set(w.k, at * z.qk_width + h, poison);
        for (std::int64_t j = 0; j < z.v_width; ++j) w.set(w.v, at * z.v_width + j, poison);
      }
    }
    if (w.relative_bias) {
      for (const std::int64_t element : unused_elements(w.c, used)) {
        w.set(w.relative_bias, element, poison);
        ++poisoned_buckets;
      }
    }
    expect_same(before, compute(w.c, GetParam()));
    if (HasFailure()) return;
  }
  EXPECT_GT(poisoned_buckets, 100);
  EXPECT_GT(poisoned_keys, 500);
  EXPECT_GT(poisoned_pairs, 2000);
}

// Compares results before and after one value became NaN. Rows with rows[i] = true must be NaN; if scores_change is false, only their first column of out. In
// all other rows, out, lse and d_q must have the same bits as before.
void expect_only_rows(const Writable& w, const Everything& before, const Everything& after, const std::vector<bool>& rows,
                      bool scores_change) {
  for (std::size_t row = 0; row < rows.size(); ++row) {
    SCOPED_TRACE(row);
    const auto at = static_cast<std::int64_t>(row);
    const auto row_of = [&](TensorView view, std::int64_t width) {
      return ConstTensorView(view).reshape({static_cast<std::int64_t>(rows.size()), width}).select(0, at);
    };
    const ConstTensorView out = row_of(after.o.out, w.c.sizes.v_width), lse = row_of(after.o.lse, 1);
    if (!rows[row]) {
      EXPECT_TRUE(same_bits(out, row_of(before.o.out, w.c.sizes.v_width)));
      EXPECT_TRUE(same_bits(lse, row_of(before.o.lse, 1)));
      EXPECT_TRUE(same_bits(row_of(after.o.d_q, w.c.sizes.qk_width), row_of(before.o.d_q, w.c.sizes.qk_width)));
    } else if (scores_change) {
      for (const double x : to_doubles(out)) EXPECT_TRUE(std::isnan(x));
      EXPECT_TRUE(std::isnan(to_doubles(lse)[0]));
    } else {
      EXPECT_TRUE(std::isnan(to_doubles(out)[0]));  // the NaN is in column 0 of v
      const std::int64_t width = w.c.sizes.v_width;
      EXPECT_TRUE(same_bits(out.slice(0, 1, width), row_of(before.o.out, width).slice(0, 1, width)));
      EXPECT_TRUE(same_bits(lse, row_of(before.o.lse, 1)));
    }
  }
}

using NaN = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, NaN, testing::ValuesIn(backends()), name_of_backend);

TEST_P(NaN, ReachesExactlyTheRowsThatUseIt) {
  const AttentionSizes sizes{.lead = {2}, .kv_heads = 2, .group = 2, .queries = 4, .keys = 5, .qk_width = 3, .v_width = 3};
  for (const char* where : {"q", "k", "v", "bias"}) {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      SCOPED_TRACE(where);
      SCOPED_TRACE(seed);
      Writable w(sizes, seed);
      Random random(seed);
      w.c.options.mask.attend = w.c.keep(random.tensor(DType::boolean, sizes.pairs()));
      const std::vector<bool> used = used_pairs(w.c);
      const Everything before = compute(w.c, GetParam());

      const std::int64_t batch = 2, rows = batch * sizes.heads() * sizes.queries;
      const auto any_key = [&](std::int64_t row) {
        const auto first = used.begin() + row * sizes.keys;
        return std::find(first, first + sizes.keys, true) != first + sizes.keys;
      };
      std::vector<bool> reached(static_cast<std::size_t>(rows));
      const std::int64_t key = random.integer(0, batch * sizes.kv_heads * sizes.keys - 1);
      const std::int64_t row = random.integer(0, rows - 1), pair = random.integer(0, rows * sizes.keys - 1);
      if (where == std::string_view("q")) {
        w.set(w.q, row * sizes.qk_width + 1, kNaN);
        reached[static_cast<std::size_t>(row)] = any_key(row);
      } else if (where == std::string_view("bias")) {
        w.set(w.bias, pair, kNaN);
        reached[static_cast<std::size_t>(pair / sizes.keys)] = used[static_cast<std::size_t>(pair)];
      } else {
        if (where == std::string_view("k")) {
          w.set(w.k, key * sizes.qk_width + 2, kNaN);
        } else {
          w.set(w.v, key * sizes.v_width, kNaN);
        }
        const std::int64_t kv = key / sizes.keys, s = key % sizes.keys;  // kv: index of the key/value head, counted over all sequences
        for (std::int64_t i = 0; i < sizes.group * sizes.queries; ++i) {
          const std::int64_t reader = kv * sizes.group * sizes.queries + i;
          reached[static_cast<std::size_t>(reader)] = used[static_cast<std::size_t>(reader * sizes.keys + s)];
        }
      }
      expect_only_rows(w, before, compute(w.c, GetParam()), reached, where != std::string_view("v"));
      if (HasFailure()) return;
    }
  }
}

constexpr EmptyRows kModes[] = {EmptyRows::zero, EmptyRows::uniform, EmptyRows::unmasked};

// Checks that row t is computed as an empty row: out, d_q, d_bias and the maps are 0, and lse is -infinity.
void expect_empty_row(const Writable& w, const Everything& all, std::int64_t t) {
  const auto row = [&](TensorView view) { return ConstTensorView(view).select(w.c.sizes.lead.size() + 1, t); };
  for (const double x : to_doubles(row(all.o.out))) EXPECT_EQ(x, 0);
  for (const double x : to_doubles(row(all.o.lse))) EXPECT_EQ(x, -kInfinity);
  for (const double x : to_doubles(row(all.o.d_q))) EXPECT_EQ(x, 0);
  if (all.o.d_bias) {
    for (const double x : to_doubles(row(all.o.d_bias))) EXPECT_EQ(x, 0);
  }
  for (const Tensor& map : {all.maps[1], all.maps[2]}) {
    for (const double x : to_doubles(map.view().select(w.c.sizes.lead.size() + 1, t))) EXPECT_EQ(x, 0);
  }
}

constexpr auto kSmall = [] {
  return AttentionSizes{.lead = {2}, .kv_heads = 2, .group = 1, .queries = 3, .keys = 4, .qk_width = 2, .v_width = 3};
};

using EmptyRow = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, EmptyRow, testing::ValuesIn(backends()), name_of_backend);

TEST_P(EmptyRow, WithoutAnyKeyIsZeroAndHasNoGradient) {
  Writable w(kSmall(), 1);
  const Tensor lengths = Tensor::of<std::int64_t>({2, 3}, {4, 0, 2, 1, 0, 3});
  w.c.options.mask.key_lengths = lengths;
  const Everything all = compute(w.c, GetParam());
  expect_empty_row(w, all, 1);

  Writable without(kSmall(), 1);  // the same problem, except that q is 0 in query 1
  without.c.options.mask.key_lengths = lengths;
  fill(without.q.select(2, 1), 0);
  without.c.d_out = without.c.keep(Tensor::copy_of(without.c.d_out));
  const Everything other = compute(without.c, GetParam());
  EXPECT_TRUE(same_bits(other.o.d_k, all.o.d_k));
  EXPECT_TRUE(same_bits(other.o.d_v, all.o.d_v));
}

TEST_P(EmptyRow, WithAStartAtOrAfterItsLengthIsZeroAndHasNoGradient) {
  Writable w(kSmall(), 8);
  const Tensor starts = Tensor::of<std::int64_t>({2, 3}, {1, 2, 0, 3, 4, 0}), lengths = Tensor::of<std::int64_t>({2, 3}, {4, 2, 4, 4, 1, 2});
  w.c.options.mask.key_starts = starts, w.c.options.mask.key_lengths = lengths;
  expect_empty_row(w, compute(w.c, GetParam()), 1);
}

TEST_P(EmptyRow, IfItsBiasIsMinusInfinityItIsEmptyInEveryMode) {
  for (const EmptyRows mode : kModes) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(static_cast<int>(mode));
      Writable w(kSmall(), 2, dtype);
      w.c.options.empty_rows = mode;
      fill(w.bias.select(2, 1), -kInfinity);
      expect_empty_row(w, compute(w.c, GetParam()), 1);
    }
  }
}

TEST_P(EmptyRow, IfAllAttendedScoresAreMinusInfinityItIsEmptyInEveryMode) {
  for (const EmptyRows mode : kModes) {
    SCOPED_TRACE(static_cast<int>(mode));
    Writable w(kSmall(), 3);
    w.c.options.empty_rows = mode;
    w.c.options.mask.causal = Causal::top_left();
    fill(w.bias.select(2, 1).slice(-1, 0, 2), -kInfinity);  // query 1 may attend only to keys 0 and 1, so all its scores become -inf
    expect_empty_row(w, compute(w.c, GetParam()), 1);
  }
}

TEST_P(EmptyRow, IfMaskedWithABiasOfMinusInfinityItIsEmptyExceptInModeUniform) {
  for (const EmptyRows mode : kModes) {
    SCOPED_TRACE(static_cast<int>(mode));
    Writable w(kSmall(), 4);
    w.c.options.empty_rows = mode;
    const Tensor lengths = Tensor::of<std::int64_t>({2, 3}, {4, 0, 2, 1, 0, 3});
    w.c.options.mask.key_lengths = lengths;
    fill(w.bias.select(2, 1), -kInfinity);
    const Everything all = compute(w.c, GetParam());
    if (mode != EmptyRows::uniform) {
      expect_empty_row(w, all, 1);
      continue;
    }
    for (const double p : to_doubles(all.maps[1].view().select(2, 1))) EXPECT_NEAR(p, 0.25, 1e-15);
    for (const double d : to_doubles(ConstTensorView(all.o.d_bias).select(2, 1))) EXPECT_EQ(d, 0);
  }
}

TEST_P(EmptyRow, ALargeFiniteBiasMakesNoRowEmpty) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Writable w(kSmall(), 5, dtype);
    fill(w.bias.select(2, 1), -1e38);
    const Everything all = compute(w.c, GetParam());
    // A bias of -1e38 is so large that <q,k> is lost in rounding: every key has the same attention weight.
    for (const double p : to_doubles(all.maps[1].view().select(2, 1))) EXPECT_NEAR(p, 0.25, 1e-6);
    for (const double x : to_doubles(ConstTensorView(all.o.lse).select(2, 1))) EXPECT_NEAR(x, -1e38, 1e36);
    const ConstTensorView mean = w.v;
    for (std::int64_t b = 0; b < 2; ++b) {
      double sum = 0;
      for (const double x : to_doubles(mean.select(0, b).select(0, 0).select(-1, 0))) sum += x / 4;
      EXPECT_NEAR(to_doubles(ConstTensorView(all.o.out).select(0, b).select(0, 0).select(0, 1))[0], sum, 1e-2);
    }
  }
}

TEST_P(EmptyRow, ABiasOfMinusInfinityGivesAKeyProbabilityZero) {
  Writable infinite(kSmall(), 6), masked(kSmall(), 6);
  fill(infinite.bias.slice(-1, 1, 3), -kInfinity);
  const Tensor attend = Tensor::of<bool>({4}, {true, false, false, true});
  masked.c.options.mask.attend_keys = attend;
  const Everything a = compute(infinite.c, GetParam()), b = compute(masked.c, GetParam());
  EXPECT_TRUE(near(a.o.out, b.o.out, 1e-15));
  EXPECT_TRUE(near(a.o.lse, b.o.lse, 1e-15));
  EXPECT_TRUE(near(a.o.d_q, b.o.d_q, 1e-15));
  EXPECT_TRUE(near(a.o.d_k, b.o.d_k, 1e-15));
  EXPECT_TRUE(near(a.o.d_v, b.o.d_v, 1e-15));
  EXPECT_TRUE(near(a.o.d_bias, b.o.d_bias, 1e-15));
}

TEST_P(EmptyRow, UniformEqualsEqualScoresAndUnmaskedEqualsNoMask) {
  for (const bool uniform : {true, false}) {
    SCOPED_TRACE(uniform);
    Writable rule(kSmall(), 7), plain(kSmall(), 7);
    rule.c.options.empty_rows = uniform ? EmptyRows::uniform : EmptyRows::unmasked;
    const Tensor lengths = Tensor::of<std::int64_t>({2}, {0, 4});
    rule.c.options.mask.key_lengths = lengths;
    // An empty row in mode `uniform` has equal scores. Give the rows of sequence 0 in the plain problem equal scores, too.
    if (uniform) {
      fill(plain.q.select(0, 0), 0);
      fill(plain.bias.select(0, 0), -1e6);
    }
    const Everything a = compute(rule.c, GetParam()), b = compute(plain.c, GetParam());
    EXPECT_TRUE(near(a.o.out, b.o.out, 1e-14));
    EXPECT_TRUE(near(a.o.d_v, b.o.d_v, 1e-14));
    if (uniform) {
      for (const double d : to_doubles(ConstTensorView(a.o.d_q).select(0, 0))) EXPECT_EQ(d, 0);
    } else {
      EXPECT_TRUE(near(a.o.d_q, b.o.d_q, 1e-14));
      EXPECT_TRUE(near(a.o.lse, b.o.lse, 1e-14));
    }
  }
}

}  // namespace
}  // namespace polyhead::test
