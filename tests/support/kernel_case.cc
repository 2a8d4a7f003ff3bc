#include "support/kernel_case.h"

namespace polyhead::test {

Tolerances::Tolerances(const AttentionCase& c) {
  const double width = static_cast<double>(std::max<std::int64_t>(1, c.sizes.qk_width));
  const double scale = std::abs(c.options.scale.value_or(1 / std::sqrt(width)));
  const double bias = (c.options.bias ? largest_magnitude(c.options.bias) : 0) + (c.options.sink ? largest_magnitude(c.options.sink) : 0) +
                      largest_relative_bias(c);
  const double q = largest_magnitude(c.q), k = largest_magnitude(values_of(c.k, c.k_scale)),
               v = largest_magnitude(values_of(c.v, c.v_scale)), d = largest_magnitude(c.d_out);
  relative = 8 * epsilon(c.dtype) * (4 + std::sqrt(static_cast<double>(c.sizes.keys)) + scale * q * k * width + bias);
  const double kept = kept_factor(c.options.dropout);
  lse = relative;
  relative += storage_rounding(c.dtype);
  if (is_native(c)) relative += 0x1.01p-8;  // the error of rounding p and d_score to bfloat16 (docs/maths.md, section 7)
  out = relative * kept * v;
  const double pair = kept * d * v * std::sqrt(static_cast<double>(std::max<std::int64_t>(1, c.sizes.v_width)));
  d_q = relative * pair * scale * k, d_k = relative * pair * scale * q, d_v = relative * kept * d, d_bias = relative * pair;
  // An element of d_relative_bias is a sum over pairs (query, key). For a slope, each term is d_score times the distance of the pair, so the bound has the
  // largest distance as a factor.
  const double reach = c.options.relative_bias.slopes ? largest_distance(c) : 1;
  d_relative_bias = d_bias * reach * std::sqrt(static_cast<double>(std::max<std::int64_t>(1, numel(c.sizes.pairs()))));
  d_sink = d_bias * std::sqrt(static_cast<double>(std::max<std::int64_t>(1, numel(c.sizes.lse()))));
}

double epsilon(DType dtype) {
  return dtype == DType::f64 ? std::numeric_limits<double>::epsilon() : static_cast<double>(std::numeric_limits<float>::epsilon());
}

bool is_native(const AttentionCase& c) {
  return c.options.precision == Precision::native && c.dtype == DType::bf16 && c.k.dtype() == DType::bf16;
}

double largest_distance(const AttentionCase& c) {
  double offset = 0;
  for (const double x : c.options.mask.diagonal_offsets ? to_doubles(c.options.mask.diagonal_offsets) : std::vector<double>())
    offset = std::max(offset, std::abs(x));
  for (const std::optional<Diagonal>& d : {c.options.mask.causal, c.options.mask.window.diagonal, c.options.relative_bias.diagonal}) {
    if (d) offset = std::max(offset, std::abs(static_cast<double>(d->shift)));
  }
  return offset + static_cast<double>(c.sizes.queries + c.sizes.keys);
}

double largest_relative_bias(const AttentionCase& c) {
  const RelativeBias& bias = c.options.relative_bias;
  if (!bias) return 0;
  return bias.slopes ? largest_magnitude(bias.slopes) * largest_distance(c) : largest_magnitude(bias.table);
}

AttentionOutputs reference_forward(AttentionCase& c) {
  const AttentionOutputs o = c.make_forward_outputs();
  c.options.backend = &find_backend("reference");
  c.forward(o);
  c.options.backend = &find_backend("cpu");
  return o;
}

void backward_from(const AttentionCase& c, const AttentionOutputs& forward, const AttentionOutputs& o) {
  copy(forward.out, o.out), copy(forward.lse, o.lse);
  c.backward(o);
}

AttentionOutputs reference_backward(AttentionCase& c, const AttentionOutputs& forward) {
  const AttentionOutputs o = c.make_outputs();
  c.options.backend = &find_backend("reference");
  backward_from(c, forward, o);
  c.options.backend = &find_backend("cpu");
  return o;
}

AttentionCase in_float64(const AttentionCase& c) {
  AttentionCase wide;
  wide.sizes = c.sizes, wide.dtype = DType::f64, wide.options = c.options;
  const auto widened = [&](const ConstTensorView& x) { return x ? ConstTensorView(wide.keep(Tensor::copy_of(x, DType::f64))) : x; };
  wide.q = widened(c.q), wide.d_out = widened(c.d_out);
  wide.k = wide.keep(values_of(c.k, c.k_scale)), wide.v = wide.keep(values_of(c.v, c.v_scale));
  wide.options.bias = widened(c.options.bias), wide.options.sink = widened(c.options.sink);
  RelativeBias& relative = wide.options.relative_bias;
  relative.slopes = widened(relative.slopes), relative.table = widened(relative.table);
  if (c.table) wide.use_bias_table(wide.keep(Tensor::copy_of(c.table, DType::f64)));
  return wide;
}

void expect_forward_near(const AttentionOutputs& actual, const AttentionOutputs& expected, const Tolerances& t) {
  EXPECT_TRUE(near(actual.out, expected.out, t.out)) << "out";
  EXPECT_TRUE(near(actual.lse, expected.lse, t.lse)) << "lse";
}

void expect_gradients_near(const AttentionOutputs& actual, const AttentionOutputs& expected, const Tolerances& t) {
  const auto expect_near = [&](const char* name, const TensorView& gradient, const TensorView& wanted, double least) {
    ASSERT_EQ(static_cast<bool>(gradient), static_cast<bool>(wanted)) << name;
    if (!gradient) return;
    EXPECT_TRUE(near(gradient, wanted, t.relative * largest_magnitude(wanted) + least)) << name;
  };
  expect_near("d_q", actual.d_q, expected.d_q, t.d_q);
  expect_near("d_k", actual.d_k, expected.d_k, t.d_k);
  expect_near("d_v", actual.d_v, expected.d_v, t.d_v);
  expect_near("d_bias", actual.d_bias, expected.d_bias, t.d_bias);
  expect_near("d_sink", actual.d_sink, expected.d_sink, t.d_sink);
  expect_near("d_relative_bias", actual.d_relative_bias, expected.d_relative_bias, t.d_relative_bias);
}

Tensor reference_map(AttentionCase& c, const MapsInput& input, MapValue value) {
  Tensor map(DType::f64, c.sizes.pairs());
  c.options.backend = &find_backend("reference");
  attention_map(input, map, c.options, value);
  c.options.backend = &find_backend("cpu");
  return map;
}

AttentionSizes draw_block_sizes(Random& random) {
  AttentionSizes z;
  for (std::int64_t rank = random.integer(0, 2); rank > 0; --rank) z.lead.push_back(random.pick<std::int64_t>({1, 2}));
  z.kv_heads = random.integer(1, 2), z.group = random.pick<std::int64_t>({1, 1, 2, 3});
  const auto length = [&] {
    return random.pick<std::int64_t>({0, 1, 2, 3, 5, 6, 7, 11, 12, 13, 15, 16, 17, 24, 31, 32, 33, 63, 64, 65, 97});
  };
  const auto width = [&] { return random.pick<std::int64_t>({1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 80}); };
  z.queries = length(), z.keys = length(), z.qk_width = width(), z.v_width = random.coin() ? z.qk_width : width();
  return z;
}

AttentionSizes draw_long_sizes(Random& random) {
  AttentionSizes z;
  z.lead = {1};
  z.kv_heads = 1, z.group = random.integer(1, 2);
  z.queries = random.pick<std::int64_t>({1, 13, 193, 385, 769, 800});
  z.keys = random.pick<std::int64_t>({255, 256, 257, 511, 512, 513, 577, 1025});
  z.qk_width = random.pick<std::int64_t>({3, 16, 33, 64});
  z.v_width = random.pick<std::int64_t>({2, 16, 40, 64});
  if (z.queries * z.keys > 100'000) z.qk_width = z.v_width = 8;
  return z;
}

AttentionCase draw_kernel_case(Random& random, std::uint64_t seed) {
  AttentionCase c = draw_case(random, kDTypes[seed % 5], seed % 24 == 0 ? draw_long_sizes(random) : draw_block_sizes(random));
  c.options.backend = &find_backend("cpu");
  return c;
}

}  // namespace polyhead::test
