#include "polyhead/models/vision_encoder.h"

#include <string>
#include <utility>

#include "core/text.h"
#include "models/model_parts.h"
#include "nn/check.h"
#include "nn/elementwise.h"

namespace polyhead::models {
namespace {

constexpr const char* kVisionForward = "VisionEncoder.forward";

// Returns the patches [*,G,C*h*w] of pixels [*,C,height,width], each patch channel by channel and row by row.
Tensor unfolded(const VisionConfig& c, ConstTensorView pixels, DType dtype, const Workspace* workspace) {
  const int lead = pixels.rank() - 3;
  const ConstTensorView whole = pixels.slice(-2, 0, c.rows() * c.patch_height).slice(-1, 0, c.columns() * c.patch_width);
  const ConstTensorView parts = whole.unflatten(-2, {c.rows(), c.patch_height}).unflatten(-1, {c.columns(), c.patch_width});  // [*,C,rows,h,columns,w]
  std::vector<int> axes;
  for (int axis = 0; axis < lead; ++axis) axes.push_back(axis);
  for (const int axis : {1, 3, 0, 2, 4}) axes.push_back(lead + axis);
  const ConstTensorView ordered = parts.permute(axes);
  const Shape shape = appended(pixels.shape().first(lead), {c.patches(), c.channels * c.patch_height * c.patch_width});
  Tensor patches = uninitialised(dtype, shape, workspace);
  copy(ordered, patches.view().reshape(ordered.shape()));
  return patches;
}

// Returns the embedded tokens of the image with their positions added, [*,T,E].
Tensor embedded(const VisionEncoder& encoder, ConstTensorView pixels, const nn::RunOptions& run) {
  const VisionConfig& c = encoder.config;
  const Shape shape = appended(pixels.shape().first(pixels.rank() - 3), {c.tokens(), c.layer.width});
  Tensor x = uninitialised(c.layer.dtype, shape, run.workspace);
  const TensorView of_prefix = x.view().slice(-2, 0, c.prefix_tokens()), of_patches = x.view().slice(-2, c.prefix_tokens(), c.tokens());
  const Tensor patches = unfolded(c, pixels, c.layer.dtype, run.workspace);
  encoder.patches.forward(patches, of_patches, run);
  if (encoder.prefix) copy(encoder.prefix.view().expand(of_prefix.shape()), of_prefix);
  const TensorView with_positions = c.prefix_positions ? x.view() : of_patches;
  nn::add(encoder.positions.view().expand(with_positions.shape()), with_positions, run.executor);
  if (!encoder.embedding_norm.weight) return x;
  Tensor y = uninitialised(c.layer.dtype, shape, run.workspace);
  encoder.embedding_norm.forward(x, y, run);
  return y;
}

// Computes the vector [*,E] that represents the image.
Tensor pooled(const VisionEncoder& encoder, VisionPooling pooling, ConstTensorView hidden, const nn::RunOptions& run) {
  const VisionConfig& c = encoder.config;
  const Shape lead = hidden.shape().first(hidden.rank() - 2), shape = appended(lead, {c.layer.width});
  Tensor vector = uninitialised(c.layer.dtype, shape, run.workspace);
  switch (pooling) {
    case VisionPooling::none: fail(ErrorCode::invalid_argument, kVisionForward, ": the model has no pooling");
    case VisionPooling::class_token: copy(hidden.select(-2, 0), vector); return vector;
    case VisionPooling::patch_mean: nn::reduce_positions(hidden.slice(-2, c.prefix_tokens(), c.tokens()), {}, nn::Reduce::mean, vector.view().unsqueeze(-2), run.executor); return vector;
    case VisionPooling::all_mean: nn::reduce_positions(hidden, {}, nn::Reduce::mean, vector.view().unsqueeze(-2), run.executor); return vector;
    case VisionPooling::dense: {
      Tensor dense = uninitialised(c.layer.dtype, appended(lead, {encoder.pooler.out_width()}), run.workspace);
      encoder.pooler.forward(hidden.select(-2, 0), dense, run);
      nn::activate(c.pooler_activation, dense, dense, run.executor);
      return dense;
    }
    case VisionPooling::attention: {
      const ProbePooling& head = encoder.pooling_head;
      const ConstTensorView probe = head.probe.view().expand(appended(lead, {1, c.layer.width}));
      Tensor normed = uninitialised(c.layer.dtype, shape, run.workspace), added = uninitialised(c.layer.dtype, shape, run.workspace);
      head.attention.forward({.query = probe, .key = hidden}, vector.view().unsqueeze(-2), {.executor = run.executor, .workspace = run.workspace});
      head.norm.forward(vector, normed, run);
      head.feed_forward.forward(normed, added, run);
      nn::add(added, vector, run.executor);
      return vector;
    }
  }
  fail(ErrorCode::invalid_argument, kVisionForward, ": unknown pooling");
}

Tensor projected(const nn::Linear& linear, ConstTensorView x, const nn::RunOptions& run) {
  Tensor y = uninitialised(x.dtype(), nn::with_width(x.shape(), linear.out_width()), run.workspace);
  linear.forward(x, y, run);
  return y;
}

}  // namespace

std::int64_t VisionEncoder::pooled_width() const {
  if (config.pooling == VisionPooling::none) return 0;
  return config.pooling == VisionPooling::dense ? pooler.out_width() : config.layer.width;
}

std::int64_t VisionEncoder::embedding_width() const {
  if (projection.weight) return projection.out_width();
  return config.pooling == VisionPooling::attention ? config.layer.width : 0;
}

void VisionEncoder::forward(ConstTensorView pixels, const VisionOutput& output, const VisionOptions& options) const {
  const VisionConfig& c = config;
  require(static_cast<bool>(pixels), kVisionForward, ": pixels are missing");
  require(pixels.rank() >= 3 && is_floating(pixels.dtype()), kVisionForward, ": pixels is ", pixels.dtype(), " ", pixels.shape(), "; it must be floating [*,C,height,width]");
  require(pixels.extent(-3) == c.channels, kVisionForward, ": pixels is ", pixels.shape(), "; the model has C = ", c.channels, " channels");
  require(pixels.extent(-2) == c.height && pixels.extent(-1) == c.width, kVisionForward, ": pixels is ", pixels.shape(), "; the model's images are ", c.height, " x ", c.width,
          ". Resize them: positions are not interpolated");
  require(std::ssize(stack.layers) == c.layers && c.layers > 0, kVisionForward, ": the model has ", stack.layers.size(), " layers; config.layers is ", c.layers);
  require(!output.pooled || pooled_width() > 0, kVisionForward, ": pooled is asked for; this ", c.family, " model has no pooler");
  require(!output.logits || classes() > 0, kVisionForward, ": logits are asked for; this ", c.family, " model has no classifier");
  require(!output.embedding || embedding_width() > 0, kVisionForward, ": embedding is asked for; this ", c.family, " model has no embedding");
  const Shape lead = pixels.shape().first(pixels.rank() - 3), tokens = appended(lead, {c.tokens(), c.layer.width});
  const LayerOutputs of_layers{.all_hidden = output.all_hidden, .attentions = output.attentions, .q = output.q, .k = output.k, .v = output.v};
  std::vector<WantedOutput> all = wanted(of_layers, c.layer, c.layers, tokens);
  all.push_back({{"hidden", output.hidden}, tokens});
  all.push_back({{"pooled", output.pooled}, appended(lead, {pooled_width()})});
  all.push_back({{"logits", output.logits}, appended(lead, {classes()})});
  all.push_back({{"embedding", output.embedding}, appended(lead, {embedding_width()})});
  const Operand read{"pixels", pixels};
  require_wanted(kVisionForward, all, {&read, 1}, *this);

  const Workspace own;  // lets layers reuse memory if the caller gives no workspace
  const nn::RunOptions run{options.executor, options.workspace != nullptr ? options.workspace : &own};
  const nn::AttentionOptions attention{.backend = options.backend, .executor = run.executor, .workspace = run.workspace};
  Tensor x = through_encoder(stack, {}, embedded(*this, pixels, run), of_layers, run, [&](std::int64_t) { return attention; });
  if (stack.final_norm.weight) {
    Tensor y = uninitialised(x.dtype(), x.shape(), run.workspace);
    stack.final_norm.forward(x, y, run);
    x = std::move(y);
  }
  if (output.hidden) copy(x, output.hidden);
  const auto vector_of = [&](VisionPooling pooling) {
    Tensor vector = pooled(*this, pooling, x, run);
    if (pooling != c.pooling || !pooled_norm.weight) return vector;
    Tensor normed = uninitialised(x.dtype(), vector.shape(), run.workspace);
    pooled_norm.forward(vector, normed, run);
    return normed;
  };
  if (output.pooled || output.embedding) {
    Tensor vector = vector_of(c.pooling);
    if (output.pooled) copy(vector, output.pooled);
    if (output.embedding && projection.weight) vector = projected(projection, vector, run);
    if (output.embedding) copy(vector, output.embedding);
  }
  if (output.logits) {
    const Tensor vector = vector_of(c.classified);
    Tensor logits = projected(classifier, vector, run);
    if (distillation_classifier.weight) {
      const Tensor others = projected(distillation_classifier, x.view().select(-2, 1), run);
      Tensor half(logits.dtype(), {1});
      fill(half, 0.5);
      nn::add(others, logits, run.executor);
      nn::multiply(logits, half, logits, run.executor);
    }
    copy(logits, output.logits);
  }
}

}  // namespace polyhead::models
