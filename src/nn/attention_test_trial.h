// An attention layer with random parameters and inputs, for tests.
#pragma once

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "polyhead/nn/multi_head_attention.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::nn {

using test::Random;

struct Setting {
  const char* name;
  MultiHeadAttentionConfig config;
  Shape query, key = {}, value = {};  // rank 0: not given
  Shape bias = {};
  std::function<Mask(Random&)> mask = {};
  Mode mode = Mode::evaluation;
  Shape sink = {};
};

// One layer with random inputs, its output and every gradient.
struct Trial {
  explicit Trial(const Setting& setting, std::uint64_t seed = 1) : random(seed), layer(setting.config), gradients(zeros_like(layer)) {
    layer.visit([&](const std::string&, Tensor& tensor) { tensor = random.tensor(DType::f64, tensor.shape()); });
    query = random.tensor(DType::f64, setting.query);
    input.query = query;
    if (!setting.key.empty()) input.key = key = random.tensor(DType::f64, setting.key);
    if (!setting.value.empty()) input.value = value = random.tensor(DType::f64, setting.value);
    options.mode = setting.mode;
    options.dropout_seed = 5;
    if (!setting.bias.empty()) options.bias = bias = random.tensor(DType::f64, setting.bias);
    if (!setting.sink.empty()) options.sink = sink = random.tensor(DType::f64, setting.sink);
    if (setting.mask) options.mask = setting.mask(random);
    out = Tensor(DType::f64, layer.output_shape(input));
    d_out = random.tensor(DType::f64, out.shape());
  }

  double loss() {
    layer.forward(input, out, options, &saved);
    return test::weighted_sum(out, d_out);
  }

  void backward() {
    loss();
    MultiHeadAttention::Gradients wanted{.parameters = &gradients};
    wanted.query = d_query = Tensor(DType::f64, query.shape());
    if (key) wanted.key = d_key = Tensor(DType::f64, key.shape());
    if (value) wanted.value = d_value = Tensor(DType::f64, value.shape());
    if (bias) wanted.bias = d_bias = Tensor(DType::f64, bias.shape());
    if (sink) wanted.sink = d_sink = Tensor(DType::f64, sink.shape());
    layer.backward(saved, d_out, wanted);
  }

  Random random;
  MultiHeadAttention layer, gradients;
  Tensor query, key, value, bias, sink, out, d_out, d_query, d_key, d_value, d_bias, d_sink;
  AttentionInput input;
  AttentionOptions options;
  MultiHeadAttention::Saved saved;
};

// Positions of T rows, for R features; the angles of pair i grow by 1000^(-i).
inline std::pair<Tensor, Tensor> rotary_tables(const std::vector<double>& positions, std::int64_t features) {
  const Shape shape{static_cast<std::int64_t>(positions.size()), features / 2};
  std::pair<Tensor, Tensor> tables{Tensor(DType::f64, shape), Tensor(DType::f64, shape)};
  for (std::int64_t t = 0; t < shape[0]; ++t) {
    for (std::int64_t i = 0; i < shape[1]; ++i) {
      const double angle = positions[static_cast<std::size_t>(t)] * std::pow(1000, -static_cast<double>(i));
      tables.first.data<double>()[t * shape[1] + i] = std::cos(angle);
      tables.second.data<double>()[t * shape[1] + i] = std::sin(angle);
    }
  }
  return tables;
}

}  // namespace polyhead::nn
