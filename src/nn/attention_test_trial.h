// An attention layer with random parameters and inputs, for tests.
#pragma once

#include <cmath>
#include <functional>
#include <list>
#include <numeric>
#include <utility>
#include <vector>

#include "polyhead/nn/multi_head_attention.h"
#include "support/attention_case.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::nn {

using test::Random;

struct Setting {
  const char* name;
  MultiHeadAttentionConfig config;
  Shape query, key = {}, value = {};  // the shapes of the inputs; an empty shape: the input is not given
  Shape bias = {};
  std::function<Mask(Random&)> mask = {};
  Mode mode = Mode::evaluation;
  Shape sink = {};
  Shape relative_bias = {};  // [N]: shape of the slopes; [N,buckets]: shape of the table
};

inline MultiHeadAttention drawn(MultiHeadAttentionConfig config) {
  config.seed = 1;
  return MultiHeadAttention(config);
}

// A layer with random inputs, its output, and the gradients of all inputs and parameters.
struct Trial {
  explicit Trial(const Setting& setting, std::uint64_t seed = 1) : random(seed), layer(drawn(setting.config)), gradients(zeros_like(layer)) {
    layer.visit([&](const std::string&, Tensor& tensor) { tensor = random.tensor(DType::f64, tensor.shape()); });
    query = random.tensor(DType::f64, setting.query);
    input.query = query;
    if (!setting.key.empty()) input.key = key = random.tensor(DType::f64, setting.key);
    if (!setting.value.empty()) input.value = value = random.tensor(DType::f64, setting.value);
    options.mode = setting.mode;
    options.dropout_seed = 5;
    if (!setting.bias.empty()) options.bias = bias = random.tensor(DType::f64, setting.bias);
    if (!setting.sink.empty()) options.sink = sink = random.tensor(DType::f64, setting.sink);
    if (!setting.relative_bias.empty()) {
      relative_bias = random.tensor(DType::f64, setting.relative_bias);
      (setting.relative_bias.size() == 1 ? options.relative_bias.slopes : options.relative_bias.table) = relative_bias;
    }
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
    if (relative_bias) wanted.relative_bias = d_relative_bias = Tensor(DType::f64, relative_bias.shape());
    if (sink) wanted.sink = d_sink = Tensor(DType::f64, sink.shape());
    layer.backward(saved, d_out, wanted);
  }

  // Returns the parameters and the given inputs, with their gradients.
  std::vector<test::Leaf> leaves() {
    std::vector<test::Leaf> list = test::parameter_leaves(layer, gradients);
    list.push_back({"query", query, d_query});
    if (key) list.push_back({"key", key, d_key});
    if (value) list.push_back({"value", value, d_value});
    if (bias) list.push_back({"bias", bias, d_bias});
    if (sink) list.push_back({"sink", sink, d_sink});
    if (relative_bias) list.push_back({"relative_bias", relative_bias, d_relative_bias});
    return list;
  }

  Random random;
  MultiHeadAttention layer, gradients;
  Tensor query, key, value, bias, sink, relative_bias, out, d_out, d_query, d_key, d_value, d_bias, d_sink, d_relative_bias;
  AttentionInput input;
  AttentionOptions options;
  MultiHeadAttention::Saved saved;
};

inline void expect_central_differences(Trial& run) {
  run.backward();
  test::expect_gradients([&] { return run.loss(); }, run.leaves());
}

// Expects each row of the attention maps to sum to 1 minus the attention weight of its sink.
inline void expect_maps_of_whole_rows(Trial& run) {
  run.loss();
  Tensor maps(DType::f64, run.layer.maps_shape(run.input));
  attention_map(run.saved.maps(), maps, run.saved.sdpa);
  const std::vector<double> p = test::to_doubles(maps), lse = test::to_doubles(run.saved.lse);
  std::vector<double> sink(lse.size(), -test::kInfinity);
  if (run.saved.sdpa.sink) sink = test::to_doubles(test::sink_rows(run.saved.sdpa.sink).expand(run.saved.lse.shape()));
  const auto keys = static_cast<std::ptrdiff_t>(maps.extent(-1));
  for (std::size_t row = 0; row < lse.size(); ++row) {
    const auto first = p.begin() + static_cast<std::ptrdiff_t>(row) * keys;
    EXPECT_NEAR(std::accumulate(first, first + keys, 0.0), 1 - std::exp(sink[row] - lse[row]), 1e-12);
  }
}

// Keeps a tensor, such as a mask, alive until the program ends.
inline Tensor& keep(Tensor tensor) {
  static std::list<Tensor> kept;
  return kept.emplace_back(std::move(tensor));
}

// Returns the cosines and sines [T,R/2] for R features at T positions; the angle of pair i is the position times 1000^(-i).
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
