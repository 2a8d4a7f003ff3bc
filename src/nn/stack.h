// The forward and the backward pass of a stack of encoder or decoder layers.
#pragma once

#include <vector>

#include "nn/cached_attention.h"
#include "nn/check.h"
#include "nn/initialiser.h"
#include "polyhead/nn/dropout.h"
#include "polyhead/nn/layer_config.h"
#include "polyhead/nn/multi_head_attention.h"
#include "polyhead/nn/norm.h"
#include "polyhead/nn/residual.h"

namespace polyhead::nn {

template <class Layer, class Config>
std::vector<Layer> make_layers(const char* operation, const Config& config, std::int64_t count) {
  require(count >= 1, operation, ": count is ", count, "; it must be at least 1");
  const std::uint64_t seed = config.seed;
  std::vector<Layer> layers;
  for (std::int64_t i = 0; i < count; ++i) {
    Config own = config;
    own.seed = derive_seed(seed, static_cast<std::uint64_t>(i));
    layers.emplace_back(own);
  }
  return layers;
}

inline Norm make_final_norm(const LayerConfig& config) {
  if (config.norm_position.value_or(NormPosition::post) == NormPosition::post) return {};
  return Norm({.width = config.width, .kind = config.norm, .epsilon = config.epsilon, .dtype = config.dtype});
}

// The forward pass of a stack. f(i, in, out, saved of layer i) computes layer i.
template <class Stack, class F>
void stack_forward(const char* operation, const Stack& stack, ConstTensorView x, TensorView y, const RunOptions& options,
                   typename Stack::Saved* saved, const F& f) {
  require(!stack.layers.empty(), operation, ": there are no layers");
  require(static_cast<bool>(x), operation, ": x is missing");
  require_exactly(operation, {"y", y}, x.shape(), stack.layers[0].feed_forward_norm.weight.dtype());
  require_no_overlap(operation, {"y", y}, {{"x", x}});
  require_parameters_separate(operation, {{"y", y}}, stack);
  const std::size_t count = stack.layers.size();
  const bool normed = static_cast<bool>(stack.final_norm.weight);
  require(normed || stack.layers.back().norm_position == NormPosition::post, operation, ": layer ", count - 1,
          " norms its input and final_norm is absent, so nothing would norm y; set final_norm, or norm_position of the layers to post");
  if (saved != nullptr) saved->layers.resize(count);
  std::vector<Tensor> outputs;
  ConstTensorView in = x;
  for (std::size_t i = 0; i < count; ++i) {
    Tensor next = i + 1 < count || normed ? uninitialised(y.dtype(), x.shape(), options.workspace) : Tensor();
    const TensorView out = next ? next.view() : y;
    f(i, in, out, saved != nullptr ? &saved->layers[i] : nullptr);
    if (saved == nullptr) outputs.clear();  // in evaluation only the last output is needed
    if (next) outputs.push_back(std::move(next));
    in = out;
  }
  if (normed) stack.final_norm.forward(in, y, options);
  if (saved != nullptr) saved->outputs = std::move(outputs);
}

inline void require_no_cache(const char* operation, const AttentionOptions& options, const char* type) {
  require(options.cache == nullptr, operation, ": the option cache is for one layer; for a stack use ", type);
}

// Computes the next tokens of a stack with a cache. f(i, in, out, options with the cache of layer i) computes layer i.
template <class Stack, class F>
void cached_forward(const char* operation, const Stack& stack, ConstTensorView x, TensorView y, std::vector<KeyValueCache>& caches,
                    const AttentionOptions& options, const F& f) {
  require(options.cache == nullptr, operation, ": a cache is given as an argument and in the options; the option is for a single layer");
  require(caches.size() == stack.layers.size(), operation, ": the cache has ", caches.size(), " layers; this stack has ", stack.layers.size());
  LengthsRollback before(caches);
  stack_forward(operation, stack, x, y, {options.executor, options.workspace}, static_cast<typename Stack::Saved*>(nullptr),
                [&](std::size_t i, ConstTensorView in, TensorView out, auto*) {
                  AttentionOptions own = options;
                  own.cache = &caches[i];
                  f(i, in, out, own);
                });
  before.commit();
}

// The backward pass of a stack. f(i, d_out, d_in) writes the gradient of the input of layer i; x is the input of layer 0.
template <class Stack, class F>
void stack_backward(const char* operation, const Stack& stack, const typename Stack::Saved& saved, ConstTensorView x, ConstTensorView d_y,
                    TensorView d_x, Stack* grads, Write parameters_write, const RunOptions& options, const F& f) {
  const std::size_t count = stack.layers.size();
  const bool normed = static_cast<bool>(stack.final_norm.weight);
  require(count > 0 && saved.layers.size() == count && saved.outputs.size() == count - (normed ? 0 : 1), operation, ": saved is of ",
          saved.layers.size(), " layers; this stack has ", count);
  require_exactly(operation, {"d_y", d_y}, x.shape(), x.dtype());
  require_exactly(operation, {"d_x", d_x}, x.shape(), x.dtype());
  require_no_overlap(operation, {"d_x", d_x}, {{"x", x}, {"d_y", d_y}});
  require_parameters_separate(operation, {{"d_x", d_x}}, stack);
  if (grads != nullptr) require_gradients(operation, stack, *grads, {{"x", x}, {"d_y", d_y}}, {"d_x", d_x});
  const auto like_x = [&] { return uninitialised(x.dtype(), x.shape(), options.workspace); };
  Tensor d_out, d_in;
  if (normed) {
    d_out = like_x();
    stack.final_norm.backward(saved.outputs.back(), d_y,
                              {.x = d_out, .parameters = grads != nullptr ? &grads->final_norm : nullptr, .parameters_write = parameters_write}, options);
  }
  for (std::size_t i = count; i-- > 0;) {
    if (i > 0 && !d_in) d_in = like_x();
    f(i, d_out ? ConstTensorView(d_out) : d_y, i > 0 ? d_in.view() : d_x);
    std::swap(d_out, d_in);
  }
}

}  // namespace polyhead::nn
