#include "polyhead/nn/value_norms.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "support/compare.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::Random;
using test::to_doubles;
using testing::HasSubstr;

Tensor filled(Random& random, DType dtype, const Shape& shape) {
  Tensor tensor(dtype, shape);
  random.fill(tensor);
  return tensor;
}

// Computes a value norm as the formula says, element by element: f[e] = sum_i W[e, n V + i] v[i].
double norm(const Tensor& v, const Tensor& weight, std::int64_t b, std::int64_t n, std::int64_t s, std::int64_t heads) {
  const std::int64_t shared = v.extent(1), keys = v.extent(2), width = v.extent(3), out = weight ? weight.extent(0) : width;
  const std::vector<double> values = to_doubles(v), w = weight ? to_doubles(weight) : std::vector<double>();
  double sum = 0;
  for (std::int64_t e = 0; e < out; ++e) {
    double f = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      const double x = values[static_cast<std::size_t>(((b * shared + n / (heads / shared)) * keys + s) * width + i)];
      f += weight ? w[static_cast<std::size_t>(e * heads * width + n * width + i)] * x : i == e ? x : 0;
    }
    sum += f * f;
  }
  return std::sqrt(sum);
}

TEST(ValueNorms, AreTheFormulaForEveryDtypeHeadsAndStrides) {
  Random random(1);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const auto& [heads, shared] : std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {4, 4}, {6, 2}, {4, 1}}) {
      for (const std::int64_t keys : {0, 1, 7, 130}) {
        for (const bool projects : {true, false}) {
          Linear output;
          if (projects) output.weight = filled(random, dtype, {11, heads * 5});
          const Tensor v = filled(random, dtype, {2, keys, shared, 5});  // v as a layer projects it: the axis of keys lies before that of heads
          const ConstTensorView strided = v.view().transpose(1, 2);
          Tensor out(DType::f64, {2, heads, keys});
          value_norms(strided, output, out);
          const Tensor plain = Tensor::copy_of(strided);
          for (std::int64_t b = 0; b < 2; ++b)
            for (std::int64_t n = 0; n < heads; ++n)
              for (std::int64_t s = 0; s < keys; ++s) {
                const double wanted = norm(plain, output.weight, b, n, s, heads);
                EXPECT_NEAR(out.data<double>()[(b * heads + n) * keys + s], wanted, (dtype == DType::f64 ? 1e-14 : 1e-6) * wanted) << info(dtype).name << " " << heads << " " << shared << " " << n << " " << s;
              }
        }
      }
    }
  }
}

// A layer's output must be its bias plus the sum of p f over heads and keys. The norm of f must be the value norm.
TEST(ValueNorms, MeasureWhatALayerAddsForAKey) {
  for (const std::int64_t kv_heads : {4, 2}) {
    const MultiHeadAttention layer({.query_width = 12, .heads = 4, .kv_heads = kv_heads, .head_width = 3, .bias = true, .dtype = DType::f64, .seed = 5});
    Random random(2);
    const Tensor x = filled(random, DType::f64, {1, 6, 12});
    MultiHeadAttention::Saved saved;
    Tensor y(DType::f64, layer.output_shape({.query = x}));
    layer.forward({.query = x}, y, {}, &saved);
    Tensor norms(DType::f64, {1, 4, 6}), map(DType::f64, {1, 4, 6, 6}), summed(DType::f64, {6, 12});
    value_norms(saved.v_heads, layer.output, norms);
    attention_map(saved.maps(), map, saved.sdpa);
    const Tensor weights = Tensor::copy_of(map);
    weight_by_norms(norms, map);
    const std::vector<double> p = to_doubles(weights), weighted = to_doubles(map), v = to_doubles(Tensor::copy_of(saved.v_heads)), w = to_doubles(layer.output.weight), bias = to_doubles(layer.output.bias), wanted = to_doubles(y);
    for (std::size_t t = 0; t < 6; ++t) {
      std::vector<double> sum = bias;
      for (std::size_t n = 0; n < 4; ++n)
        for (std::size_t s = 0; s < 6; ++s) {
          double square = 0;
          for (std::size_t e = 0; e < 12; ++e) {
            double f = 0;
            for (std::size_t i = 0; i < 3; ++i) f += w[e * 12 + n * 3 + i] * v[((n / (4 / static_cast<std::size_t>(kv_heads))) * 6 + s) * 3 + i];
            sum[e] += p[(n * 6 + t) * 6 + s] * f;
            square += std::pow(p[(n * 6 + t) * 6 + s] * f, 2);
          }
          EXPECT_NEAR(weighted[(n * 6 + t) * 6 + s], std::sqrt(square), 1e-14);
        }
      for (std::size_t e = 0; e < 12; ++e) EXPECT_NEAR(sum[e], wanted[t * 12 + e], 1e-13);  // the sum of p f must be the layer's output, so that f is right
    }
  }
}

TEST(ValueNorms, AMaskedKeyStaysZero) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  Tensor map = Tensor::of<double>({1, 2, 3}, {0.5, 0, 0.5, 0, 0, 1});
  const Tensor norms = Tensor::of<double>({1, 3}, {4, kNan, 2});
  weight_by_norms(norms, map);
  EXPECT_THAT(to_doubles(map), testing::ElementsAre(2, 0, 1, 0, 0, 2));
}

TEST(ValueNorms, RefuseByName) {
  Tensor v(DType::f32, {2, 7, 5}), out(DType::f32, {4, 7});
  Linear output({.in_width = 20, .out_width = 6, .seed = 1});
  EXPECT_EQ(error_message([&] { value_norms(v, output, out); }), "");
  Linear narrow({.in_width = 15, .out_width = 6, .seed = 1});
  EXPECT_THAT(error_message([&] { value_norms(v, narrow, out); }), HasSubstr("the output projection's weight is [6,15]; it must be [E,N*V] with N*V = 4 * 5 = 20"));
  Tensor odd(DType::f32, {3, 7});
  EXPECT_THAT(error_message([&] { value_norms(v, output, odd); }), HasSubstr("the 3 heads must be a multiple of the 2 of v"));
  Tensor whole(DType::i64, {2, 7, 5});
  EXPECT_THAT(error_message([&] { value_norms(whole, output, out); }), HasSubstr("v is int64 [2,7,5]; it must be floating and [*,K,S,V]"));
  const MultiHeadAttention gated({.query_width = 20, .heads = 4, .gate = Gate::sigmoid, .seed = 1});
  const MultiHeadAttention* const layers[] = {&gated};
  Tensor all(DType::f32, {1, 4, 7, 5}), norms(DType::f32, {1, 4, 7});
  EXPECT_THAT(error_message([&] { value_norms(layers, all, norms); }), HasSubstr("layer 0 has a gate"));
  Tensor map(DType::f32, {4, 3, 7});
  EXPECT_THAT(error_message([&] { weight_by_norms(odd, map); }), HasSubstr("norms is [3,7]; it must be [4,7]"));
}

}  // namespace
}  // namespace polyhead::nn
