#include "polyhead/nn/pair_bias_attention.h"

#include "core/index.h"
#include "polyhead/sdpa.h"
#include "support/gradients.h"
#include "support/random.h"
#include "support/seeds.h"
#include "support/thread_count.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::Random;
using test::same_bits;
using test::ThreadCount;
using test::to_doubles;

PairBias random_pair(Random& random, DType dtype, std::int64_t width, std::int64_t heads, bool norm_bias, bool bias) {
  return {LayerNorm(random.tensor(dtype, {width}, 0.5, 1.5), norm_bias ? random.tensor(dtype, {width}) : Tensor(), 1e-5),
          Linear(random.tensor(dtype, {heads, width}), bias ? random.tensor(dtype, {heads}) : Tensor())};
}

// A call of attention with pair bias: its inputs and results. z has the extent 1 in a leading dimension along which z is shared.
struct PairCase {
  PairBias pair;
  Tensor q, k, v, z, keep, d_out;
  EmptyRows empty_rows = EmptyRows::zero;
  Tensor out, lse, d_q, d_k, d_v, d_z;
  PairBias d_pair;

  PairCase(Random& random, DType dtype, const Shape& lead, const Shape& z_lead, std::int64_t heads, std::int64_t queries, std::int64_t keys, std::int64_t width, std::int64_t pair_width,
           bool masked)
      : pair(random_pair(random, dtype, pair_width, heads, random.coin(), random.coin())) {
    q = random.tensor(dtype, appended(lead, {heads, queries, width}), -2, 2), k = random.tensor(dtype, appended(lead, {heads, keys, width}), -2, 2);
    v = random.tensor(dtype, appended(lead, {heads, keys, width + 1})), d_out = random.tensor(dtype, appended(lead, {heads, queries, width + 1}));
    z = random.tensor(dtype, appended(z_lead, {queries, keys, pair_width}), -1, 3);
    if (masked) {
      keep = random.tensor(DType::boolean, appended(lead, {keys}));
      empty_rows = random.pick({EmptyRows::zero, EmptyRows::uniform, EmptyRows::unmasked});
      if (keep.numel() > 0 && random.coin()) fill(keep.view().reshape({keep.numel() / keys, keys}).select(0, 0), 0);  // masks all keys of one sequence
    }
    out = Tensor(dtype, d_out.shape()), lse = Tensor(accumulation_dtype(dtype), q.shape().first(q.shape().size() - 1));
    d_q = zeros_like(q), d_k = zeros_like(k), d_v = zeros_like(v), d_z = zeros_like(z), d_pair = zeros_like(pair);
  }
  PairBiasSdpa input() const { return {.q = q, .k = k, .v = v, .z = z, .attend_keys = keep, .empty_rows = empty_rows}; }
  void forward(const RunOptions& options = {}) { pair_bias_sdpa_forward(pair, input(), out, lse, options); }
  void backward(const RunOptions& options = {}) {
    pair_bias_sdpa_backward(pair, input(), out, lse, d_out, {.q = d_q, .k = d_k, .v = d_v, .z = d_z, .parameters = &d_pair}, options);
  }
  // Returns the gradients of the last backward pass, with their names.
  std::vector<std::pair<std::string, Tensor>> gradients() const {
    std::vector<std::pair<std::string, Tensor>> list{{"d_q", d_q}, {"d_k", d_k}, {"d_v", d_v}, {"d_z", d_z}};
    d_pair.visit([&](const std::string& name, const Tensor& tensor) { list.emplace_back(name, tensor); });
    return list;
  }
  void with_the_whole_bias() {
    Shape shape = z.shape().first(z.shape().size() - 1);
    shape.insert(shape.size() - 2, pair.heads());
    Tensor bias(z.dtype(), shape), d_bias(z.dtype(), shape);
    pair.forward(z, bias);
    SdpaOptions options{.bias = bias, .empty_rows = empty_rows};
    options.mask.attend_keys = keep;
    sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, options);
    sdpa_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v, .d_bias = d_bias}, options);
    pair.backward(z, d_bias, {.x = d_z, .parameters = &d_pair});
  }
};

// Computes the output in float64 by the formula of polyhead/nn/pair_bias.h. All tensors must be contiguous.
std::vector<double> formula(const PairCase& c) {
  const std::int64_t lead = c.q.numel() / std::max<std::int64_t>(c.q.extent(-3) * c.q.extent(-2) * c.q.extent(-1), 1);
  const std::int64_t N = c.q.extent(-3), T = c.q.extent(-2), S = c.k.extent(-2), H = c.q.extent(-1), V = c.v.extent(-1), C = c.pair.pair_width();
  const auto q = to_doubles(c.q), k = to_doubles(c.k), v = to_doubles(c.v), gamma = to_doubles(c.pair.norm.weight), weight = to_doubles(c.pair.projection.weight);
  const auto z = to_doubles(c.z.view().expand(appended(c.q.shape().first(c.q.shape().size() - 3), {T, S, C})));
  const auto beta = c.pair.norm.bias ? to_doubles(c.pair.norm.bias) : std::vector<double>(static_cast<std::size_t>(C));
  const auto b = c.pair.projection.bias ? to_doubles(c.pair.projection.bias) : std::vector<double>(static_cast<std::size_t>(N));
  const auto keep = c.keep ? to_doubles(c.keep) : std::vector<double>(static_cast<std::size_t>(lead * S), 1);
  const auto at = [](const std::vector<double>& x, std::int64_t i) { return x[static_cast<std::size_t>(i)]; };
  std::vector<double> out;
  for (std::int64_t l = 0; l < lead; ++l) {
    double open = 0;
    for (std::int64_t s = 0; s < S; ++s) open += at(keep, l * S + s);
    for (std::int64_t n = 0; n < N; ++n) {
      for (std::int64_t t = 0; t < T; ++t) {
        std::vector<double> score(static_cast<std::size_t>(S)), result(static_cast<std::size_t>(V));
        double largest = -test::kInfinity, total = 0;
        for (std::int64_t s = 0; s < S; ++s) {
          const std::int64_t first = ((l * T + t) * S + s) * C;
          double mean = 0, variance = 0, bias = at(b, n), product = 0;
          for (std::int64_t e = 0; e < C; ++e) mean += at(z, first + e) / static_cast<double>(C);
          for (std::int64_t e = 0; e < C; ++e) variance += std::pow(at(z, first + e) - mean, 2) / static_cast<double>(C);
          for (std::int64_t e = 0; e < C; ++e) bias += at(weight, n * C + e) * ((at(z, first + e) - mean) / std::sqrt(variance + 1e-5) * at(gamma, e) + at(beta, e));
          for (std::int64_t h = 0; h < H; ++h) product += at(q, ((l * N + n) * T + t) * H + h) * at(k, ((l * N + n) * S + s) * H + h);
          double& x = score[static_cast<std::size_t>(s)];
          x = product / std::sqrt(static_cast<double>(H)) + bias;
          if (open > 0 ? at(keep, l * S + s) == 0 : c.empty_rows == EmptyRows::zero) x = -test::kInfinity;
          if (open == 0 && c.empty_rows == EmptyRows::uniform) x = 0;
          largest = std::max(largest, x);
        }
        if (largest > -test::kInfinity) {
          for (double& x : score) total += x = std::exp(x - largest);
          for (std::int64_t s = 0; s < S; ++s) {
            for (std::int64_t e = 0; e < V; ++e) result[static_cast<std::size_t>(e)] += at(score, s) / total * at(v, ((l * N + n) * S + s) * V + e);
          }
        }
        out.insert(out.end(), result.begin(), result.end());
      }
    }
  }
  return out;
}

PairCase small_case(Random& random, DType dtype) {
  const std::int64_t a = random.integer(1, 3), b = random.integer(1, 3);
  const auto [lead, z_lead] = random.pick<std::pair<Shape, Shape>>({{{}, {}}, {{a}, {a}}, {{a}, {1}}, {{a, b}, {a, 1}}, {{a, b}, {1, b}}, {{a, b}, {a, b}}, {{0}, {0}}});
  return {random, dtype, lead, z_lead, random.integer(1, 4), random.integer(0, 9), random.integer(0, 9), random.integer(1, 9), random.integer(1, 20), random.coin()};
}

// Returns cases that are cut into several blocks of queries, where each block is cut into several pieces. Some pieces hold only a part of the keys of a row.
std::vector<PairCase> large_cases(Random& random, DType dtype) {
  std::vector<PairCase> cases;
  cases.emplace_back(random, dtype, Shape{2, 2}, Shape{2, 1}, 16, 75, 530, 8, 4, true);
  cases.emplace_back(random, dtype, Shape{2}, Shape{1}, 2, 5, 700, 4, 100, false);
  cases.emplace_back(random, dtype, Shape{9, 4}, Shape{9, 4}, 4, 33, 130, 8, 6, true);
  return cases;
}

TEST(PairBiasAttention, IsTheFormula) {
  for (const std::uint64_t seed : test::seeds(1, 120)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const DType dtype = random.pick({DType::f32, DType::f64});
    const ThreadCount threads(static_cast<int>(random.integer(1, 4)));
    PairCase c = small_case(random, dtype);
    c.forward();
    const std::vector<double> actual = to_doubles(c.out), expected = formula(c);
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], dtype == DType::f64 ? 1e-12 : 3e-5) << i;
  }
}

TEST(PairBiasAttention, SeveralBlocksEqualTheFormula) {
  Random random(2);
  for (PairCase& c : large_cases(random, DType::f64)) {
    c.forward();
    const std::vector<double> actual = to_doubles(c.out), expected = formula(c);
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 1e-12) << i;
  }
}

TEST(PairBiasAttention, BlocksHaveTheBitsOfTheWholeBias) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Random random(3);
    for (PairCase& c : large_cases(random, dtype)) {
      c.forward();
      c.backward();
      const Tensor out = c.out, lse = c.lse;
      const auto by_blocks = c.gradients();
      c.with_the_whole_bias();
      EXPECT_TRUE(same_bits(c.out, out));
      EXPECT_TRUE(same_bits(c.lse, lse));
      const auto whole = c.gradients();
      // A constant that is added to all scores of a row changes nothing. The gradients of the biases therefore cancel to rounding noise, whose size is compared
      // with the gradients of the weights.
      const double largest = test::largest_magnitude(c.d_pair.projection.weight);
      for (std::size_t i = 0; i < whole.size(); ++i) {
        const double scale = whole[i].first.ends_with("bias") ? largest : test::largest_magnitude(whole[i].second);
        EXPECT_TRUE(test::near(by_blocks[i].second, whole[i].second, scale * (dtype == DType::f32 ? 1e-5 : 1.0 / 64))) << whole[i].first << " " << info(dtype).name;
      }
      // d_q and d_z are not summed over blocks, so they must have the same bits with one block and with many blocks.
      EXPECT_TRUE(same_bits(by_blocks[0].second, whole[0].second));
      EXPECT_TRUE(same_bits(by_blocks[3].second, whole[3].second));
    }
  }
}

TEST(PairBiasAttention, AnyNumberOfThreadsGivesTheSameBits) {
  Random random(4);
  for (PairCase& c : large_cases(random, DType::f32)) {
    std::vector<std::pair<std::string, Tensor>> first;
    for (const int count : {1, 2, 3, 8}) {
      const ThreadCount threads(count);
      c.forward();
      c.backward();
      auto results = c.gradients();
      results.emplace_back("out", c.out);
      if (first.empty()) first = results;
      for (std::size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(same_bits(results[i].second, first[i].second)) << results[i].first << ", " << count << " threads";
    }
  }
}

TEST(PairBiasAttention, GradientsOfHeadsAndPairsAreCentralDifferences) {
  for (const std::uint64_t seed : test::seeds(1, 12)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    PairCase c = small_case(random, DType::f64);
    c.empty_rows = random.pick({EmptyRows::zero, EmptyRows::unmasked});
    c.forward();
    c.backward();
    auto leaves = test::parameter_leaves(c.pair, c.d_pair);
    for (auto& [name, value, gradient] : std::initializer_list<test::Leaf>{{"q", c.q, c.d_q}, {"k", c.k, c.d_k}, {"v", c.v, c.d_v}, {"z", c.z, c.d_z}}) leaves.push_back({name, value, gradient});
    test::expect_gradients(
        [&] {
          c.forward();
          return test::weighted_sum(c.out, c.d_out);
        },
        leaves);
  }
}

// z is not read for pairs whose key is masked, so it may be NaN there.
TEST(PairBiasAttention, AMaskedKeyMayBeNaN) {
  Random random(5);
  PairCase c(random, DType::f32, {2}, {2}, 3, 6, 7, 4, 5, true);
  fill(c.keep, 1);
  fill(c.keep.view().slice(1, 2, 4), 0);
  c.empty_rows = EmptyRows::zero;
  c.forward();
  c.backward();
  const Tensor out = c.out;
  const auto before = c.gradients();
  fill(c.k.view().slice(2, 2, 4), test::kNaN);
  fill(c.v.view().slice(2, 2, 4), test::kNaN);
  fill(c.z.view().slice(2, 2, 4), test::kNaN);
  c.forward();
  c.backward();
  EXPECT_TRUE(same_bits(c.out, out));
  const auto after = c.gradients();
  for (std::size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(same_bits(after[i].second, before[i].second)) << after[i].first;
}

TEST(PairBias, GradientsAddUp) {
  Random random(6);
  const PairBias pair = random_pair(random, DType::f32, 6, 3, true, true);
  const Tensor z = random.tensor(DType::f32, {2, 4, 5, 6}), d_bias = random.tensor(DType::f32, {2, 3, 4, 5}), start = random.tensor(DType::f32, z.shape());
  Tensor d_z(DType::f32, z.shape()), added = start;
  PairBias grads = zeros_like(pair), twice = zeros_like(pair);
  pair.backward(z, d_bias, {.x = d_z, .parameters = &grads});
  pair.backward(z, d_bias, {.x = added, .parameters = &twice, .x_write = Write::add, .parameters_write = Write::add});
  pair.backward(z, d_bias, {.parameters = &twice, .parameters_write = Write::add});
  const auto one = to_doubles(grads.projection.weight), two = to_doubles(twice.projection.weight);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_EQ(two[i], 2 * one[i]);
  const auto x = to_doubles(d_z), y = to_doubles(added), s = to_doubles(start);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i] + s[i], 1e-5);
}

// A layer for self- or cross-attention, with or without a gate, and its inputs.
struct PairLayerCase {
  PairBiasAttention layer;
  Tensor query, key, z, keep, d_out;
  PairLayerCase(Random& random, DType dtype, bool cross, bool gate)
      : layer({.width = 6, .key_width = cross ? 5 : 0, .pair_width = 7, .heads = 2, .head_width = 4, .gate = gate, .pair_projection_bias = true, .dtype = dtype, .seed = 1}) {
    layer.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor); });
    const std::int64_t keys = cross ? 5 : 4;
    query = random.tensor(dtype, {2, 3, 4, 6}), d_out = random.tensor(dtype, query.shape());
    if (cross) key = random.tensor(dtype, {2, 3, keys, 5});
    z = random.tensor(dtype, {2, 1, 4, keys, 7});
    keep = random.tensor(DType::boolean, {2, 1, keys});
    fill(keep.view().slice(2, 0, 1), 1);
  }
  PairBiasAttention::Input input() const { return {.query = query, .key = key, .z = z, .attend_keys = keep}; }
};

TEST(PairBiasAttention, GradientsOfTheLayerAreCentralDifferences) {
  for (const bool cross : {false, true}) {
    for (const bool gate : {false, true}) {
      SCOPED_TRACE(std::string(cross ? "cross" : "self") + (gate ? ", gated" : ""));
      Random random(7);
      PairLayerCase c(random, DType::f64, cross, gate);
      Tensor out = zeros_like(c.query), d_query = zeros_like(c.query), d_key = zeros_like(c.key), d_z = zeros_like(c.z);
      PairBiasAttention grads = zeros_like(c.layer);
      PairBiasAttention::Saved saved;
      c.layer.forward(c.input(), out, {}, &saved);
      c.layer.backward(saved, c.d_out, {.query = d_query, .key = d_key, .z = d_z, .parameters = &grads});
      auto leaves = test::parameter_leaves(c.layer, grads);
      leaves.push_back({"query", c.query, d_query}), leaves.push_back({"z", c.z, d_z});
      if (cross) leaves.push_back({"key", c.key, d_key});
      test::expect_gradients(
          [&] {
            c.layer.forward(c.input(), out);
            return test::weighted_sum(out, c.d_out);
          },
          leaves);
    }
  }
}

TEST(PairBiasAttention, APrecomputedBiasGivesTheSameBits) {
  Random random(8);
  PairLayerCase c(random, DType::f32, false, true);
  Tensor bias(DType::f32, {2, 1, 2, 4, 4}), d_bias = zeros_like(bias), out = zeros_like(c.query), kept = out, d_z = zeros_like(c.z), kept_d_z = d_z, d_query = out, kept_d_query = out;
  PairBiasAttention grads = zeros_like(c.layer), kept_grads = zeros_like(c.layer);
  PairBiasAttention::Saved saved, kept_saved;
  c.layer.forward(c.input(), out, {}, &saved);
  c.layer.backward(saved, c.d_out, {.query = d_query, .z = d_z, .parameters = &grads});
  c.layer.pair.forward(c.z, bias);
  const PairBiasAttention::Input input{.query = c.query, .pair_bias = bias, .attend_keys = c.keep};
  c.layer.forward(input, kept, {}, &kept_saved);
  random.fill(kept_grads.pair.projection.weight);  // backward() must replace these values
  c.layer.backward(kept_saved, c.d_out, {.query = kept_d_query, .pair_bias = d_bias, .parameters = &kept_grads});
  EXPECT_EQ(test::largest_magnitude(kept_grads.pair.projection.weight), 0);
  c.layer.pair.backward(c.z, d_bias, {.x = kept_d_z, .parameters = &kept_grads.pair});
  EXPECT_TRUE(same_bits(kept, out));
  EXPECT_TRUE(same_bits(kept_d_query, d_query));
  EXPECT_TRUE(same_bits(kept_d_z, d_z));
  const auto expected = parameters(grads), actual = parameters(kept_grads);
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(same_bits(*actual[i].second, *expected[i].second)) << actual[i].first;
}

TEST(PairBiasAttention, NamesAndInitialValues) {
  const PairBiasAttentionConfig config{.width = 8, .pair_width = 4, .heads = 2, .seed = 3};
  const PairBiasAttention layer(config), same(config);
  std::string names;
  for (const auto& [name, tensor] : parameters(layer)) names += name + " ";
  EXPECT_EQ(names, "q.weight q.bias k.weight v.weight gate.weight output.weight pair.norm.weight pair.norm.bias pair.projection.weight ");
  EXPECT_TRUE(same_bits(layer.pair.projection.weight, same.pair.projection.weight));
  EXPECT_FALSE(same_bits(layer.k.weight, layer.v.weight));
  EXPECT_EQ(layer.head_width(), 4);
}

TEST(PairBiasAttention, Messages) {
  Random random(9);
  PairLayerCase c(random, DType::f32, false, true);
  Tensor out = zeros_like(c.query), bias(DType::f32, {2, 1, 2, 4, 4});
  const auto refused = [&](const PairBiasAttention::Input& input) { return error_message([&] { c.layer.forward(input, out); }); };
  EXPECT_EQ(refused({.query = c.query}), "PairBiasAttention.forward: neither z nor pair_bias is given; exactly one of them must be");
  EXPECT_EQ(refused({.query = c.query, .z = c.z, .pair_bias = bias}), "PairBiasAttention.forward: z and pair_bias are both given; exactly one of them must be");
  EXPECT_EQ(refused({.query = c.query, .z = c.z.view().slice(3, 0, 3)}),
            "pair_bias_sdpa_forward: z is [2,1,4,3,7]; with q [2,3,2,4,4] and k [2,3,2,4,4] it must be [*,4,4,7], each leading extent that of q or 1");
  EXPECT_EQ(refused({.query = c.query, .z = c.z.view().slice(4, 0, 3)}), "pair_bias_sdpa_forward: z is [2,1,4,4,3]; its last extent must be pair_width = 7");
  EXPECT_EQ(refused({.query = c.query, .z = c.z, .attend_keys = c.z}), "pair_bias_sdpa_forward: attend_keys is float32; it must be bool");
  EXPECT_EQ(error_message([&] { c.layer.forward(c.input(), c.query); }), "PairBiasAttention.forward: out overlaps query; outputs need memory of their own");
  EXPECT_EQ(error_message([&] { c.layer.backward({}, c.d_out, {}); }), "PairBiasAttention.backward: saved is empty; give it to forward first");
  PairBiasAttention::Saved saved;
  c.layer.forward(c.input(), out, {}, &saved);
  Tensor d_bias = zeros_like(bias);
  EXPECT_EQ(error_message([&] { c.layer.backward(saved, c.d_out, {.pair_bias = d_bias}); }),
            "PairBiasAttention.backward: the gradient of pair_bias is requested, but forward() was called without this input");
  EXPECT_EQ(error_message([] { PairBiasAttention layer({.width = 6, .pair_width = 4, .heads = 4, .seed = 1}); }), "PairBiasAttention: width 6 is not a multiple of heads = 4; give head_width");
  EXPECT_NE(error_message([] { PairBias pair({.heads = 4, .seed = 1}); }), "");
}

}  // namespace
}  // namespace polyhead::nn
