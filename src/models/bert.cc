#include "polyhead/models/bert.h"

#include <algorithm>
#include <utility>

#include "core/text.h"
#include "models/bert_embeddings.h"
#include "models/model_parts.h"
#include "nn/check.h"
#include "nn/elementwise.h"
#include "nn/initialiser.h"

namespace polyhead::models {
namespace {

// Returns a view whose elements all are one zero in memory. It replaces missing segments: a single text is segment 0.
ConstTensorView zero_ids(const Shape& shape) {
  static constexpr std::int64_t kZero = 0;
  return ConstTensorView(&kZero, Shape{}).expand(shape);
}

void require_output(const Operand& output, const Shape& shape, DType dtype) {
  if (output.view) nn::require_exactly("BertEncoder.forward", output, shape, dtype);
}

void require_floating(const Operand& output, const Shape& shape) {
  if (!output.view) return;
  nn::require_shape("BertEncoder.forward", output, shape);
  require(is_floating(output.view.dtype()), "BertEncoder.forward: ", output.name, " is ", output.view.dtype(), "; it must be floating");
}

}  // namespace

BertEncoder::BertEncoder(const BertConfig& given, nn::Seed seed) : config(given) {
  constexpr const char* kName = "BertEncoder";
  require(config.vocabulary >= 1 && config.positions >= 1 && config.segments >= 0 && config.layers >= 0, kName, ": vocabulary is ",
          config.vocabulary, ", positions ", config.positions, ", segments ", config.segments, ", layers ", config.layers,
          "; the first two must be at least 1 and the others at least 0");
  require(config.longest() >= 1, kName, ": positions is ", config.positions, "; it must be above padding_token + 1");
  require(config.window_reach.empty() || std::ssize(config.window_reach) == config.layers, kName, ": window_reach has ", config.window_reach.size(), " entries for ", config.layers, " layers");
  require(config.shared_layers.empty() || std::ssize(config.shared_layers) == config.layers, kName, ": shared_layers has ", config.shared_layers.size(), " indices for ", config.layers, " layers");
  std::int64_t own_layers = config.shared_layers.empty() ? config.layers : 0;
  for (const std::int64_t index : config.shared_layers) {
    require(index >= 0 && index <= own_layers, kName, ": shared_layers has the index ", index, "; it must lie in [0,", own_layers, "], because indices are numbered in the order in which they first occur");
    own_layers = std::max(own_layers, index + 1);
  }
  const std::int64_t embedding_width = config.embedding_width != 0 ? config.embedding_width : config.width;
  nn::Initialiser initialiser(seed);
  const auto embedding = [&](std::int64_t count) {
    return nn::Embedding({.count = count, .width = embedding_width, .dtype = config.dtype, .seed = initialiser.child_seed()});
  };
  const auto norm = [&](std::int64_t width) { return nn::LayerNorm({.width = width, .epsilon = config.epsilon, .bias = config.norm_bias, .dtype = config.dtype}); };
  words = embedding(config.vocabulary);
  if (!config.rotary) positions = embedding(config.positions);
  if (config.segments > 0) segments = embedding(config.segments);
  if (config.embedding_norm) embedding_norm = norm(embedding_width);
  for (std::int64_t i = 0; i < own_layers; ++i) {
    EncoderLayer& layer = layers.emplace_back(layer_config(config, initialiser.child_seed()));
    layer.attention_norm = i == 0 && !config.first_norm ? nn::Norm() : nn::Norm(norm(config.width));
    layer.feed_forward_norm = norm(config.width);
  }
  if (config.embedding_width != 0)
    embedding_projection = nn::Linear({.in_width = embedding_width, .out_width = config.width, .dtype = config.dtype, .seed = initialiser.child_seed()});
  if (config.relative_buckets > 0) {
    relative_bias = Tensor(config.dtype, {config.relative_buckets, config.heads});
    initialiser.normal(relative_bias, 0, 1);
  }
  if (config.norm_position != nn::NormPosition::post) final_norm = norm(config.width);
}

BertEncoder::RotaryTables BertEncoder::rotary_tables(std::int64_t tokens) const {
  const DType precise = accumulation_dtype(config.dtype);
  RotaryTables tables;
  if (config.rotary) tables.all = nn::RotaryEmbedding(*config.rotary).tables(0, tokens, precise);
  if (config.local_rotary) tables.local = nn::RotaryEmbedding(*config.local_rotary).tables(0, tokens, precise);
  return tables;
}

nn::AttentionOptions BertEncoder::attention_options(std::int64_t layer, const RotaryTables& tables) const {
  nn::AttentionOptions options;
  const std::int64_t window = config.window_reach.empty() ? 0 : config.window_reach.at(static_cast<std::size_t>(layer));
  if (window > 0) options.mask.window = {.left = window, .right = window};
  const std::optional<nn::RotaryTables>& rotary = window > 0 && tables.local ? tables.local : tables.all;
  if (rotary) options.rotary = rotary->rotary();
  // the other members keep their defaults, which are MPNet's: max_distance 128, both directions
  if (relative_bias) options.relative_bias = {.table = relative_bias.view().transpose(0, 1)};
  return options;
}

void BertEncoder::forward(const BertInput& given, const BertOutput& output, const BertOptions& options, Saved* saved) const {
  constexpr const char* kOperation = "BertEncoder.forward";
  BertInput input = given;
  require(static_cast<bool>(input.ids), kOperation, ": ids are missing");
  require(input.ids.rank() >= 1, kOperation, ": ids is ", input.ids.shape(), "; it must be [*,T]");
  const Shape ids = input.ids.shape();
  const std::int64_t length = ids[-1];
  require(config.segments > 0 || !input.segments, kOperation, ": segments are given; this ", config.family, " model has none");
  if (!input.segments && config.segments > 0) input.segments = zero_ids(ids);
  if (input.segments) nn::require_shape(kOperation, {"segments", input.segments}, ids);
  if (input.attend_keys) nn::require_exactly(kOperation, {"attend_keys", input.attend_keys}, ids, DType::boolean);

  const Shape shape = appended(ids, {config.width}), maps = appended(ids.first(ids.size() - 1), {config.heads, length, length});
  const std::int64_t count = config.layers;
  for (std::int64_t i = 0; i < count; ++i) require(parameters_of(i) < layers.size(), kOperation, ": config has ", count, " layers; the parameters of layer ", i, " are missing");
  require_output({"hidden", output.hidden}, shape, config.dtype);
  require_output({"all_hidden", output.all_hidden}, with_leading(shape, count + 1), config.dtype);
  const Shape heads = appended(ids.first(ids.size() - 1), {config.heads, length, config.width / config.heads});
  require_floating({"attentions", output.attentions}, with_leading(maps, count));
  if (output.pooled) {
    require(output.pooled.rank() == ids.size() + 3, kOperation, ": pooled is ", output.pooled.shape(), "; it must be [L,*,N,h,w], with ids ", ids);
    require_floating({"pooled", output.pooled}, with_leading(appended(ids.first(ids.size() - 1), {config.heads, output.pooled.extent(-2), output.pooled.extent(-1)}), count));
  }
  require_floating({"q", output.q}, with_leading(heads, count));
  require_floating({"k", output.k}, with_leading(heads, count));
  require_floating({"v", output.v}, with_leading(heads, count));
  const Operand outputs[] = {{"hidden", output.hidden}, {"all_hidden", output.all_hidden}, {"attentions", output.attentions}, {"pooled", output.pooled}, {"q", output.q}, {"k", output.k}, {"v", output.v}};
  const Operand inputs[] = {{"ids", input.ids}, {"segments", given.segments}, {"attend_keys", input.attend_keys}};
  require_no_overlap(kOperation, outputs, inputs);
  nn::require_parameters_separate(kOperation, {outputs[0], outputs[1], outputs[2], outputs[3], outputs[4], outputs[5], outputs[6]}, *this);

  const Workspace own;  // lets layers reuse memory if the caller gives no workspace
  const Workspace* workspace = options.workspace == nullptr && saved == nullptr ? &own : options.workspace;
  const nn::RunOptions run{options.executor, workspace};
  const auto like_hidden = [&] { return uninitialised(config.dtype, shape, workspace); };
  const bool projects = static_cast<bool>(embedding_projection.weight);
  const auto like_embedded = [&] { return projects ? uninitialised(config.dtype, appended(ids, {words.width()}), workspace) : like_hidden(); };
  Tensor embedding_sum = like_embedded(), x = like_embedded(), embedded;
  words.forward(input.ids, embedding_sum, {.executor = options.executor});
  Tensor numbers = config.rotary ? Tensor() : position_ids(config, input.ids), scales = config.mask_token ? word_scales(config, input) : Tensor();
  if (scales) nn::scale_rows(embedding_sum, scales, options.executor);
  if (numbers) positions.forward(numbers.view().expand(ids), embedding_sum, {nn::Write::add, options.executor});
  if (input.segments) segments.forward(input.segments, embedding_sum, {nn::Write::add, options.executor});
  config.embedding_norm ? embedding_norm.forward(embedding_sum, x, {.executor = options.executor}) : copy(embedding_sum, x);
  if (config.zero_padding && input.attend_keys) nn::scale_rows(x, input.attend_keys, options.executor);
  if (projects) {
    embedded = std::move(x);
    x = like_hidden();
    embedding_projection.forward(embedded, x, run);
    if (saved == nullptr) embedding_sum = {};  // free it now: it may have another width, and layers could then not reuse its memory
  }
  if (output.all_hidden && count > 0) copy(x, output.all_hidden.select(0, 0));

  RotaryTables rotary = rotary_tables(length);
  if (saved != nullptr) {
    *saved = Saved{.input = input,
                   .positions = std::move(numbers),
                   .word_scales = std::move(scales),
                   .embedding_sum = std::move(embedding_sum),
                   .embedded = std::move(embedded),
                   .rotary = std::move(rotary)};
  }
  const RotaryTables& tables = saved != nullptr ? saved->rotary : rotary;
  const LayerOutputs of_layers{.attentions = output.attentions, .pooled = output.pooled, .pooling = output.pooling, .q = output.q, .k = output.k, .v = output.v};
  Tensor spare = std::move(embedding_sum);  // without `saved`, two tensors alternate as input and output
  for (std::int64_t i = 0; i < count; ++i) {
    EncoderLayer::Saved layer_saved;
    Tensor y = spare ? std::move(spare) : like_hidden();
    nn::AttentionOptions attention = attention_options(i, tables);
    attention.mask.attend_keys = input.attend_keys, attention.backend = options.backend, attention.executor = options.executor, attention.workspace = workspace;
    layers[parameters_of(i)].forward(x, y, attention, saved != nullptr || of_layers.of_heads() ? &layer_saved : nullptr);
    of_layers.write(layer_saved.attention, i, options.executor);
    if (output.all_hidden && i + 1 < count) copy(y, output.all_hidden.select(0, i + 1));
    if (saved != nullptr) {
      saved->hidden.push_back(std::move(x));  // moving keeps the views in layer_saved valid
      saved->layers.push_back(std::move(layer_saved));
    } else {
      spare = std::move(x);
    }
    x = std::move(y);
  }
  if (final_norm.weight) {
    Tensor y = spare ? std::move(spare) : like_hidden();
    final_norm.forward(x, y, run);
    if (saved != nullptr) saved->hidden.push_back(std::move(x));
    x = std::move(y);
  }
  if (output.all_hidden) copy(x, output.all_hidden.select(0, count));
  if (output.hidden) copy(x, output.hidden);
}

void BertEncoder::backward(const Saved& saved, ConstTensorView d_hidden, const Gradients& gradients, const nn::RunOptions& options) const {
  constexpr const char* kOperation = "BertEncoder.backward";
  const Shape ids = saved.input.ids.shape(), shape = appended(ids, {config.width});
  nn::require_exactly(kOperation, {"d_hidden", d_hidden}, shape, config.dtype);
  require(std::ssize(saved.layers) == config.layers, kOperation, ": saved has ", saved.layers.size(), " layers; the encoder has ", config.layers);
  BertEncoder* const grads = gradients.parameters;
  if (grads == nullptr) return;
  nn::require_gradients(kOperation, *this, *grads, {{"d_hidden", d_hidden}});
  Tensor d_y = Tensor::copy_of(d_hidden), d_x(config.dtype, shape);
  if (final_norm.weight) {
    final_norm.backward(saved.hidden.back(), d_y, {.x = d_x, .parameters = &grads->final_norm}, options);
    std::swap(d_x, d_y);
  }
  Tensor d_bias = relative_bias ? Tensor(config.dtype, {config.heads, config.relative_buckets}) : Tensor(), d_bias_sum = nn::zeros_like(d_bias);
  std::vector<bool> written(layers.size());
  for (std::int64_t i = config.layers; i-- > 0;) {
    const std::size_t own = parameters_of(i);
    layers[own].backward(saved.layers[static_cast<std::size_t>(i)], d_y,
                         {.x = d_x, .parameters = &grads->layers[own], .parameters_write = written[own] ? nn::Write::add : nn::Write::replace, .relative_bias = d_bias}, options);
    written[own] = true;
    if (d_bias) nn::add(d_bias, d_bias_sum, options.executor);
    std::swap(d_x, d_y);
  }
  if (d_bias) copy(d_bias_sum.view().transpose(0, 1), grads->relative_bias.view());
  if (embedding_projection.weight) {
    Tensor d_embedded(config.dtype, saved.embedded.shape());
    embedding_projection.backward(saved.embedded, d_y, {.x = d_embedded, .parameters = &grads->embedding_projection}, options);
    d_y = std::move(d_embedded);
    d_x = Tensor(config.dtype, d_y.shape());
  }
  if (config.zero_padding && saved.input.attend_keys) nn::scale_rows(d_y, saved.input.attend_keys, options.executor);
  if (config.embedding_norm) {
    embedding_norm.backward(saved.embedding_sum, d_y, {.x = d_x, .parameters = &grads->embedding_norm}, options);
    std::swap(d_x, d_y);
  }
  if (saved.positions) positions.backward(saved.positions.view().expand(ids), d_y, {&grads->positions}, options);
  if (config.segments > 0) segments.backward(saved.input.segments, d_y, {&grads->segments}, options);
  if (saved.word_scales) nn::scale_rows(d_y, saved.word_scales, options.executor);
  words.backward(saved.input.ids, d_y, {&grads->words}, options);
}

}  // namespace polyhead::models
