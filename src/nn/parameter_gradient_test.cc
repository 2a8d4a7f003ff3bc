// Tests the option parameters_write of every layer: with Write::add, gradients are added up over micro-batches, and over the uses of a layer that a model calls
// twice.
#include "nn/parameter_gradient.h"

#include "polyhead/nn/encoder_decoder.h"
#include "polyhead/nn/optimizer.h"
#include "polyhead/nn/rms_norm.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::near;
using test::Random;
using test::same_bits;

constexpr DType kDTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

template <class M>
M like(const M& layer, double value) {
  M result = zeros_like(layer);
  result.visit([&](const std::string&, Tensor& tensor) { fill(tensor, value); });
  return result;
}

// Checks that the gradients of two micro-batches are added up. backward(i, parameters, write) computes the gradients of micro-batch i.
template <class M, class F>
void expect_sums(const M& layer, const F& backward) {
  M first = like(layer, test::kNaN), second = like(layer, test::kNaN), from_zero = like(layer, 0), added = like(layer, test::kNaN);
  backward(0, &first, Write::replace);
  backward(1, &second, Write::replace);
  backward(0, &from_zero, Write::replace);
  backward(0, &added, Write::replace);
  backward(1, &added, Write::add);
  const auto expect_same = [](const M& one, const M& other, const char* what) {
    const auto of_one = parameters(one), of_other = parameters(other);
    ASSERT_EQ(of_one.size(), of_other.size());
    for (std::size_t i = 0; i < of_one.size(); ++i) EXPECT_TRUE(same_bits(*of_one[i].second, *of_other[i].second)) << what << " of " << of_one[i].first;
  };
  expect_same(first, from_zero, "old contents in the gradient");
  add_gradients(second, first);
  expect_same(added, first, "sum");
}

// Returns the layer with random parameters.
template <class M>
M scrambled(M layer, Random& random) {
  layer.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, -0.8, 1); });
  return layer;
}

// Tests a layer that has one input.
template <class M>
void expect_sums_of(const M& layer, const Shape& x_shape, const Shape& y_shape, DType dtype, Random& random) {
  const Tensor x[] = {random.tensor(dtype, x_shape), random.tensor(dtype, x_shape)}, d_y = random.tensor(dtype, y_shape);
  const Workspace workspace;
  expect_sums(layer, [&](int i, M* parameters, Write write) {
    if constexpr (requires { typename M::Saved; }) {
      Tensor y(dtype, y_shape), d_x(dtype, x_shape);
      typename M::Saved saved;
      if constexpr (requires { layer.forward(x[i], y, AttentionOptions{}, &saved); }) {
        layer.forward(x[i], y, {.workspace = &workspace}, &saved);
      } else {
        layer.forward(x[i], y, RunOptions{.workspace = &workspace}, &saved);
      }
      layer.backward(saved, d_y, {.x = d_x, .parameters = parameters, .parameters_write = write}, {.workspace = &workspace});
    } else {
      layer.backward(x[i], d_y, {.parameters = parameters, .parameters_write = write}, {.workspace = &workspace});
    }
  });
}

TEST(ParametersWrite, OfLayersWithOneInputAddsMicroBatches) {
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(info(dtype).name);
    Random random(1);
    const auto expect = [&](const auto& layer, const Shape& x, const Shape& y) { expect_sums_of(layer, x, y, dtype, random); };
    expect(scrambled(Linear({.in_width = 37, .out_width = 19, .dtype = dtype, .seed = 1}), random), {3, 150, 37}, {3, 150, 19});
    expect(Linear({.in_width = 3, .out_width = 2, .dtype = dtype, .seed = 1}), {0, 3}, {0, 2});
    expect(scrambled(LayerNorm({.width = 21, .dtype = dtype}), random), {2, 140, 21}, {2, 140, 21});
    expect(scrambled(LayerNorm({.width = 21, .bias = false, .dtype = dtype}), random), {5, 21}, {5, 21});
    expect(scrambled(RMSNorm({.width = 21, .dtype = dtype}), random), {2, 140, 21}, {2, 140, 21});
    expect(FeedForward({.width = 6, .hidden_width = 9, .gated = true, .dtype = dtype, .seed = 1}), {2, 5, 6}, {2, 5, 6});
    for (const NormPosition position : {NormPosition::post, NormPosition::pre})
      expect(Encoder({.width = 6, .heads = 2, .hidden_width = 5, .norm_position = position, .dtype = dtype, .seed = 1}, 2), {2, 5, 6}, {2, 5, 6});
  }
}

TEST(ParametersWrite, OfAnEmbeddingAddsMicroBatches) {
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(info(dtype).name);
    const Embedding layer({.count = 5, .width = 7, .dtype = dtype, .seed = 1});
    const Tensor ids[] = {Tensor::of<std::int64_t>({6}, {1, 3, 1, 1, 0, 1}), Tensor::of<std::int64_t>({6}, {4, 1, 1, 0, 1, 1})};
    const Tensor d_y = Random(2).tensor(dtype, {6, 7});
    expect_sums(layer, [&](int i, Embedding* parameters, Write write) { layer.backward(ids[i], d_y, {.parameters = parameters, .parameters_write = write}); });
  }
}

TEST(ParametersWrite, OfAttentionAddsMicroBatches) {
  for (const DType dtype : kDTypes) {
    for (const bool projected : {false, true}) {
      SCOPED_TRACE(std::string(info(dtype).name) + (projected ? ", projected keys" : ""));
      Random random(3);
      const auto layer = scrambled(MultiHeadAttention({.query_width = 8, .heads = 2, .gate = Gate::sigmoid, .add_bias_kv = true, .sink = true, .dtype = dtype, .seed = 1}), random);
      const Shape shape{2, 5, 8};
      const Tensor x[] = {random.tensor(dtype, shape), random.tensor(dtype, shape)}, d_y = random.tensor(dtype, shape), heads = random.tensor(dtype, {2, 2, 5, 4});
      expect_sums(layer, [&](int i, MultiHeadAttention* parameters, Write write) {
        Tensor y(dtype, shape);
        MultiHeadAttention::Saved saved;
        layer.forward({.query = x[i], .projected_key = projected ? heads.view() : ConstTensorView(), .projected_value = projected ? heads.view() : ConstTensorView()}, y, {}, &saved);
        layer.backward(saved, d_y, {.parameters = parameters, .parameters_write = write});
      });
    }
  }
}

TEST(ParametersWrite, OfADecoderAddsMicroBatches) {
  for (const DType dtype : kDTypes) {
    for (const NormPosition position : {NormPosition::post, NormPosition::pre}) {
      SCOPED_TRACE(info(dtype).name);
      Random random(4);
      const Decoder layer({.width = 6, .memory_width = 4, .heads = 2, .hidden_width = 5, .norm_position = position, .dtype = dtype, .seed = 1}, 2);
      const Shape shape{2, 3, 6};
      const Tensor x[] = {random.tensor(dtype, shape), random.tensor(dtype, shape)}, d_y = random.tensor(dtype, shape), memory = random.tensor(dtype, {2, 5, 4});
      expect_sums(layer, [&](int i, Decoder* parameters, Write write) {
        Tensor y(dtype, shape), d_x(dtype, shape);
        Decoder::Saved saved;
        layer.forward(x[i], memory, y, {}, &saved);
        layer.backward(saved, d_y, {.x = d_x, .parameters = parameters, .parameters_write = write});
      });
    }
  }
}

EncoderDecoder model_of(bool tied, DType dtype) {
  return EncoderDecoder({.source_count = 5, .layer = {.width = 4, .heads = 2, .hidden_width = 5, .dtype = dtype, .seed = 1}, .shared_embedding = tied, .tied_output = tied});
}

template <class F>
void with_backward(const EncoderDecoder& model, DType dtype, const F& f) {
  Random random(5);
  const Tensor source[] = {Tensor::of<std::int64_t>({1, 3}, {1, 0, 3}), Tensor::of<std::int64_t>({1, 3}, {2, 4, 0})};
  const Tensor target[] = {Tensor::of<std::int64_t>({1, 2}, {0, 3}), Tensor::of<std::int64_t>({1, 2}, {3, 3})}, d_logits = random.tensor(dtype, {1, 2, 5});
  f([&](int i, EncoderDecoder* parameters, Write write) {
    Tensor logits(dtype, {1, 2, 5});
    EncoderDecoder::Saved saved;
    model.forward(source[i], target[i], logits, {}, &saved);
    model.backward(saved, d_logits, {.parameters = parameters, .parameters_write = write});
  });
}

TEST(ParametersWrite, OfAnEncoderDecoderAddsMicroBatches) {
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(info(dtype).name);
    const EncoderDecoder model = model_of(false, dtype);
    with_backward(model, dtype, [&](const auto& backward) { expect_sums(model, backward); });
  }
  // A model uses a tied embedding several times, and rounds its gradient after each use. The sums are therefore compared with a tolerance.
  const EncoderDecoder tied = model_of(true, DType::f64);
  with_backward(tied, DType::f64, [&](const auto& backward) {
    EncoderDecoder first = zeros_like(tied), second = zeros_like(tied), added = zeros_like(tied);
    backward(0, &first, Write::replace), backward(1, &second, Write::replace);
    backward(0, &added, Write::add), backward(1, &added, Write::add);
    add_gradients(second, first);
    const auto expected = parameters(first), found = parameters(added);
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(near(*found[i].second, *expected[i].second, 1e-13)) << found[i].first;
  });
}

TEST(ParametersWrite, OfALayerThatAModelUsesTwiceIsTheGradientOfBothUses) {
  Random random(6);
  EncoderLayer layer = scrambled(EncoderLayer({.width = 6, .heads = 2, .hidden_width = 5, .dtype = DType::f64, .seed = 1}), random);
  const Shape shape{2, 3, 6};
  Tensor x = random.tensor(DType::f64, shape);
  const Tensor d_y = random.tensor(DType::f64, shape);
  Tensor between(DType::f64, shape), y(DType::f64, shape), d_between(DType::f64, shape), d_x(DType::f64, shape);
  EncoderLayer::Saved first, second;
  const auto loss = [&] {
    layer.forward(x, between, {}, &first);
    layer.forward(between, y, {}, &second);
    return test::weighted_sum(y, d_y);
  };
  loss();
  EncoderLayer gradients = like(layer, test::kNaN);
  layer.backward(second, d_y, {.x = d_between, .parameters = &gradients});
  layer.backward(first, d_between, {.x = d_x, .parameters = &gradients, .parameters_write = Write::add});
  auto leaves = test::parameter_leaves(layer, gradients);
  leaves.push_back({"x", x, d_x});
  test::expect_gradients(loss, leaves);
}

}  // namespace
}  // namespace polyhead::nn
