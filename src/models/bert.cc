#include "polyhead/models/bert.h"

#include <numeric>
#include <utility>

#include "core/text.h"
#include "nn/check.h"
#include "nn/initialiser.h"

namespace polyhead::models {
namespace {

// A view whose elements are all the same zero. It replaces missing segments: a single text is segment 0.
ConstTensorView zero_ids(const Shape& shape) {
  static constexpr std::int64_t kZero = 0;
  return ConstTensorView(&kZero, Shape{}).expand(shape);
}

Tensor position_ids(std::int64_t count) {
  Tensor ids(DType::i64, {count});
  std::iota(ids.data<std::int64_t>(), ids.data<std::int64_t>() + count, 0);
  return ids;
}

Shape with_leading(Shape shape, std::int64_t extent) {
  shape.insert(0, extent);
  return shape;
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

BertEncoder::BertEncoder(const BertConfig& given) : config(given) {
  require(config.vocabulary >= 1 && config.positions >= 1 && config.segments >= 1 && config.layers >= 0, "BertEncoder: vocabulary is ",
          config.vocabulary, ", positions ", config.positions, ", segments ", config.segments, ", layers ", config.layers,
          "; the first three must be at least 1 and layers at least 0");
  nn::Initialiser initialiser(config.seed);
  const auto embedding = [&](std::int64_t count) {
    return nn::Embedding({.count = count, .width = config.width, .dtype = config.dtype, .seed = initialiser.child_seed()});
  };
  words = embedding(config.vocabulary);
  positions = embedding(config.positions);
  segments = embedding(config.segments);
  embedding_norm = nn::LayerNorm({.width = config.width, .epsilon = config.epsilon, .dtype = config.dtype});
  for (std::int64_t i = 0; i < config.layers; ++i)
    layers.emplace_back(EncoderLayerConfig{.width = config.width,
                                           .heads = config.heads,
                                           .hidden_width = config.hidden_width,
                                           .activation = config.activation,
                                           .epsilon = config.epsilon,
                                           .dtype = config.dtype,
                                           .seed = initialiser.child_seed()});
}

void BertEncoder::forward(const BertInput& given, const BertOutput& output, const BertOptions& options, Saved* saved) const {
  constexpr const char* kOperation = "BertEncoder.forward";
  BertInput input = given;
  require(static_cast<bool>(input.ids), kOperation, ": ids are missing");
  require(input.ids.rank() >= 1, kOperation, ": ids is ", input.ids.shape(), "; it must be [*,T]");
  const Shape ids = input.ids.shape();
  const std::int64_t length = ids[-1];
  require(length <= config.positions, kOperation, ": the text has ", length, " tokens; the model has positions for ", config.positions);
  if (!input.segments) input.segments = zero_ids(ids);
  nn::require_shape(kOperation, {"segments", input.segments}, ids);
  if (input.attend_keys) nn::require_exactly(kOperation, {"attend_keys", input.attend_keys}, ids, DType::boolean);

  const Shape shape = nn::appended(ids, {config.width}), maps = nn::appended(ids.first(ids.size() - 1), {config.heads, length, length});
  const std::int64_t count = static_cast<std::int64_t>(layers.size());
  require_output({"hidden", output.hidden}, shape, config.dtype);
  require_output({"all_hidden", output.all_hidden}, with_leading(shape, count + 1), config.dtype);
  const Shape heads = nn::appended(ids.first(ids.size() - 1), {config.heads, length, config.width / config.heads});
  require_floating({"attentions", output.attentions}, with_leading(maps, count));
  require_floating({"q", output.q}, with_leading(heads, count));
  require_floating({"k", output.k}, with_leading(heads, count));
  require_floating({"v", output.v}, with_leading(heads, count));
  const Operand outputs[] = {{"hidden", output.hidden}, {"all_hidden", output.all_hidden}, {"attentions", output.attentions}, {"q", output.q}, {"k", output.k}, {"v", output.v}};
  const Operand inputs[] = {{"ids", input.ids}, {"segments", given.segments}, {"attend_keys", input.attend_keys}};
  require_separate(kOperation, outputs, inputs);
  nn::require_parameters_separate(kOperation, {outputs[0], outputs[1], outputs[2], outputs[3], outputs[4], outputs[5]}, *this);

  const Workspace own;  // so that layers reuse memory if the caller gives no workspace
  const Workspace* workspace = options.workspace == nullptr && saved == nullptr ? &own : options.workspace;
  const auto like_hidden = [&] { return uninitialised(config.dtype, shape, workspace); };
  Tensor embedding_sum = like_hidden(), x = like_hidden();
  words.forward(input.ids, embedding_sum, {.executor = options.executor});
  const Tensor numbers = position_ids(length);
  positions.forward(numbers.view().expand(ids), embedding_sum, {nn::Write::add, options.executor});
  segments.forward(input.segments, embedding_sum, {nn::Write::add, options.executor});
  embedding_norm.forward(embedding_sum, x, {.executor = options.executor});
  if (output.all_hidden) copy(x, output.all_hidden.select(0, 0));

  const nn::AttentionOptions attention{
      .mask = {.attend_keys = input.attend_keys}, .backend = options.backend, .executor = options.executor, .workspace = workspace};
  if (saved != nullptr) *saved = Saved{.input = input, .embedding_sum = std::move(embedding_sum)};
  const bool of_heads = output.attentions || output.q || output.k || output.v;
  Tensor spare = std::move(embedding_sum);  // without `saved`, two tensors alternate as input and output
  for (std::int64_t i = 0; i < count; ++i) {
    EncoderLayer::Saved layer_saved;
    Tensor y = spare ? std::move(spare) : like_hidden();
    layers[static_cast<std::size_t>(i)].forward(x, y, attention, saved != nullptr || of_heads ? &layer_saved : nullptr);
    if (output.attentions) {
      SdpaOptions sdpa = layer_saved.attention.sdpa;
      sdpa.executor = options.executor;
      attention_map(layer_saved.attention.maps(), output.attentions.select(0, i), sdpa);
    }
    const nn::MultiHeadAttention::Saved& one = layer_saved.attention;
    if (output.q) copy(one.q_heads, output.q.select(0, i));
    if (output.k) copy(one.k_heads, output.k.select(0, i));
    if (output.v) copy(one.v_heads, output.v.select(0, i));
    if (output.all_hidden) copy(y, output.all_hidden.select(0, i + 1));
    if (saved != nullptr) {
      saved->hidden.push_back(std::move(x));  // moving keeps the views in layer_saved valid
      saved->layers.push_back(std::move(layer_saved));
    } else {
      spare = std::move(x);
    }
    x = std::move(y);
  }
  if (output.hidden) copy(x, output.hidden);
}

void BertEncoder::backward(const Saved& saved, ConstTensorView d_hidden, const Gradients& gradients, const nn::RunOptions& options) const {
  constexpr const char* kOperation = "BertEncoder.backward";
  const Shape& shape = saved.embedding_sum.shape();
  nn::require_exactly(kOperation, {"d_hidden", d_hidden}, shape, config.dtype);
  require(saved.layers.size() == layers.size(), kOperation, ": saved has ", saved.layers.size(), " layers; the encoder has ",
          layers.size());
  BertEncoder* const grads = gradients.parameters;
  if (grads == nullptr) return;
  nn::require_gradients(kOperation, *this, *grads, {{"d_hidden", d_hidden}});
  Tensor d_y = Tensor::copy_of(d_hidden), d_x(config.dtype, shape);
  for (std::size_t i = layers.size(); i-- > 0;) {
    layers[i].backward(saved.layers[i], d_y, {.x = d_x, .parameters = &grads->layers[i]}, options);
    std::swap(d_x, d_y);
  }
  embedding_norm.backward(saved.embedding_sum, d_y, {.x = d_x, .parameters = &grads->embedding_norm}, options);
  const Shape ids = saved.input.ids.shape();
  const Tensor numbers = position_ids(ids[-1]);
  words.backward(saved.input.ids, d_x, {&grads->words}, options);
  positions.backward(numbers.view().expand(ids), d_x, {&grads->positions}, options);
  segments.backward(saved.input.segments, d_x, {&grads->segments}, options);
}

}  // namespace polyhead::models
