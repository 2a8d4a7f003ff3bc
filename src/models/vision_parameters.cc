#include <string>
#include <utility>
#include <vector>

#include "core/join.h"
#include "core/text.h"
#include "models/checkpoint.h"
#include "models/vision_config_file.h"

namespace polyhead::models {
namespace {

ProbePooling load_pooling_head(Checkpoint& file, const std::string& prefix, const nn::LayerConfig& layer) {
  const std::int64_t width = layer.width;
  ProbePooling head;
  head.probe = file.take_reshaped(prefix + ".probe", {1, width});
  const nn::Linear packed(file.take(prefix + ".attention.in_proj_weight", {3 * width, width}), file.take(prefix + ".attention.in_proj_bias", {3 * width}));
  const auto part = [&](std::int64_t i) { return Checkpoint::rows_of(packed, i * width, (i + 1) * width); };
  head.attention = nn::make_attention({.query_width = width, .heads = layer.heads, .dtype = file.dtype()}, part(0), part(1), part(2), file.linear(prefix + ".attention.out_proj", width, width));
  head.norm = file.layer_norm(prefix + ".layernorm", width, layer.epsilon);
  nn::Linear hidden = file.linear(prefix + ".mlp.fc1", layer.hidden_width, width), output = file.linear(prefix + ".mlp.fc2", width, layer.hidden_width);
  head.feed_forward = nn::FeedForward(std::move(hidden), std::move(output), layer.activation);
  return head;
}

// Returns the tokens before the patches as one tensor. `parts`: the name and the number of tokens of each tensor that is joined.
Tensor load_prefix(Checkpoint& file, const std::vector<std::pair<std::string, std::int64_t>>& parts, std::int64_t width) {
  if (parts.empty()) return {};
  if (parts.size() == 1) return file.take_reshaped(parts[0].first, {parts[0].second, width});
  std::int64_t count = 0;
  for (const auto& [name, tokens] : parts) count += tokens;
  Tensor all = Tensor::uninitialised(file.dtype(), {count, width});
  std::int64_t at = 0;
  for (const auto& [name, tokens] : parts) {
    const Tensor part = file.take_reshaped(name, {tokens, width});
    copy(part, all.view().slice(0, at, at + tokens));
    at += tokens;
  }
  return all;
}

// Returns a linear layer whose output width is known from the file only; an absent layer if the file has none.
nn::Linear load_head(Checkpoint& file, const std::string& name, std::int64_t in, bool bias) {
  const Tensor* weight = file.find(name + ".weight");
  if (weight == nullptr || weight->shape().size() != 2) return {};
  return file.linear(name, weight->extent(0), in, bias);
}

// Loads the tensors of an image encoder, with its classifier or projection. Sets *root to the part that the file puts before the names of the classifier, the
// projection and the text encoder.
VisionEncoder load_vision_side(Checkpoint& file, const VisionFamily& family, VisionConfig config, std::string* root) {
  const VisionTensors& names = family.tensors;
  const std::string prefix = file.prefix_of(cat(names.patches, ".weight"));
  *root = prefix.ends_with(names.prefix) ? prefix.substr(0, prefix.size() - names.prefix.size()) : prefix;
  const auto named = [&](std::string_view name) { return cat(prefix, name); };
  config.layer.dtype = file.dtype();
  const nn::LayerConfig& layer = config.layer;
  const std::int64_t width = layer.width, pixels = config.channels * config.patch_height * config.patch_width;
  const auto norm = [&](const std::string& name) { return file.layer_norm(name, width, layer.epsilon); };

  VisionEncoder encoder;
  const std::string patches = named(names.patches);
  Tensor weight = file.take(patches + ".weight", {width, config.channels, config.patch_height, config.patch_width});
  encoder.patches = nn::Linear(Checkpoint::part(weight, [&](TensorView view) { return view.reshape({width, pixels}); }), family.patch_bias ? file.take(patches + ".bias", {width}) : Tensor());
  std::vector<std::pair<std::string, std::int64_t>> prefix_parts;
  if (config.class_token) prefix_parts.emplace_back(named(names.class_token), 1);
  if (config.distillation_token) prefix_parts.emplace_back(named(names.distillation_token), 1);
  if (config.registers > 0) prefix_parts.emplace_back(named(names.registers), config.registers);
  encoder.prefix = load_prefix(file, prefix_parts, width);
  encoder.positions = file.take_reshaped(named(names.positions), {config.prefix_positions ? config.tokens() : config.patches(), width});
  if (!names.embedding_norm.empty()) encoder.embedding_norm = norm(named(names.embedding_norm));
  for (std::int64_t i = 0; i < config.layers; ++i) encoder.stack.layers.push_back(load_encoder_layer(file, names, layer, cat(prefix, names.layer, i, "."), norm));
  (config.norm_of_pooled ? encoder.pooled_norm : encoder.stack.final_norm) = norm(named(config.norm_of_pooled ? names.pooled_norm : names.final_norm));

  if (config.pooling == VisionPooling::dense) {
    encoder.pooler = load_head(file, named(names.pooler), width, true);
    if (!encoder.pooler.weight) config.pooling = VisionPooling::none;
  }
  if (config.pooling == VisionPooling::attention) encoder.pooling_head = load_pooling_head(file, named(names.pooling_head), layer);
  if (!names.projection.empty()) encoder.projection = load_head(file, cat(*root, names.projection), width, false);
  const bool taught = !names.distillation_classifier.empty() && file.find(cat(*root, names.distillation_classifier, ".weight")) != nullptr;
  encoder.classifier = load_head(file, cat(*root, taught ? names.taught_classifier : names.classifier), width, true);
  if (taught) encoder.distillation_classifier = file.linear(cat(*root, names.distillation_classifier), encoder.classes(), width);
  if (!encoder.classifier.weight) config.classified = VisionPooling::none;
  for (const std::string_view name : names.ignored) file.ignore_beginning(cat(prefix, name)), file.ignore_beginning(cat(*root, name));
  encoder.config = std::move(config);
  return encoder;
}

TextSide load_text_side_of(Checkpoint& file, const TextSideFamily& family, TextSideConfig config, std::string* root) {
  const std::string prefix = file.prefix_of(cat(family.words, ".weight"));
  *root = prefix.ends_with(family.prefix) ? prefix.substr(0, prefix.size() - family.prefix.size()) : prefix;
  const auto named = [&](std::string_view name) { return cat(prefix, name); };
  config.layer.dtype = file.dtype();
  const nn::LayerConfig& layer = config.layer;
  TextSide side;
  side.words = nn::Embedding(file.take(cat(prefix, family.words, ".weight"), {config.vocabulary, layer.width}));
  side.positions = nn::Embedding(file.take(cat(prefix, family.positions, ".weight"), {config.positions, layer.width}));
  const auto norm = [&](const std::string& name) { return file.layer_norm(name, layer.width, layer.epsilon); };
  const VisionTensors& names = find_vision_family("clip_vision_model")->tensors;  // image and text encoders of CLIP and SigLIP have the same names in their layers
  for (std::int64_t i = 0; i < config.layers; ++i) side.stack.layers.push_back(load_encoder_layer(file, names, layer, cat(prefix, names.layer, i, "."), norm));
  side.stack.final_norm = norm(named(family.final_norm));
  if (!family.head.empty()) side.head = load_head(file, named(family.head), layer.width, true);
  if (!family.projection.empty()) side.projection = load_head(file, cat(*root, family.projection), layer.width, false);
  if (!family.head.empty() && !side.head.weight) fail(ErrorCode::format, file.file_name(), ": has no matrix '", named(family.head), ".weight', which a ", family.model_type, " has");
  file.ignore_beginning(named("embeddings.position_ids"));
  side.config = std::move(config);
  return side;
}

}  // namespace

TextSide load_text_side(const std::filesystem::path& folder) {
  ConfigFile config_file(folder / "config.json");
  const TextSideFamily& family = text_side_family_of(config_file);
  TextSideConfig config = read_text_side_config(config_file);
  Checkpoint file(folder, family.model_type);
  std::string root;
  TextSide side = load_text_side_of(file, family, std::move(config), &root);
  if (find_text_side_family(*config_file.get<std::string>("model_type")) == nullptr)  // the image encoder is not read here
    for (const char* name : {"vision_model.", "visual_projection.", "logit_scale", "logit_bias"}) file.ignore_beginning(root + name);
  file.require_all_taken();
  return side;
}

ImageTextModel load_image_text_model(const std::filesystem::path& folder) {
  ConfigFile config_file(folder / "config.json");
  const std::string type = config_file.get<std::string>("model_type").value_or("");
  const ImageTextFamily* family = find_image_text_family(type);
  if (family == nullptr) fail(ErrorCode::unsupported, config_file.name(), ": model_type is '", type, "'; models with an image encoder and a text encoder are ", join(image_text_family_rows(), &ImageTextFamily::model_type));
  VisionConfig vision = read_vision_config(config_file);
  vision.labels = read_labels(config_file);
  TextSideConfig text = read_text_side_config(config_file);
  Checkpoint file(folder, family->model_type);
  std::string root, text_root;
  ImageTextModel model;
  model.vision = load_vision_side(file, *find_vision_family(family->vision), std::move(vision), &root);
  model.text = load_text_side_of(file, *find_text_side_family(family->text), std::move(text), &text_root);
  if (model.vision.embedding_width() == 0 || model.vision.embedding_width() != model.text.embedding_width())
    fail(ErrorCode::format, file.file_name(), ": image embeddings have ", model.vision.embedding_width(), " numbers and text embeddings ", model.text.embedding_width(), "; both must have the same width");
  const auto number = [&](const char* name) {
    const Tensor stored = file.take_reshaped(root + name, Shape{}), wide = Tensor::copy_of(stored, DType::f64);
    return wide.data<double>()[0];
  };
  model.scale.logit_scale = number("logit_scale");
  if (family->logit_bias) model.scale.logit_bias = number("logit_bias");
  file.require_all_taken();
  return model;
}

VisionEncoder load_vision_encoder(const std::filesystem::path& folder) {
  ConfigFile config_file(folder / "config.json");
  const VisionFamily& family = vision_family_of(config_file);
  VisionConfig config = read_vision_config(config_file);
  config.labels = read_labels(config_file);
  Checkpoint file(folder, family.model_type);
  std::string root;
  VisionEncoder encoder = load_vision_side(file, family, std::move(config), &root);
  if (find_image_text_family(config_file.get<std::string>("model_type").value_or("")) != nullptr)  // the text encoder is not read here
    for (const char* name : {"text_model.", "text_projection.", "logit_scale", "logit_bias"}) file.ignore_beginning(root + name);
  file.require_all_taken();
  return encoder;
}

}  // namespace polyhead::models
