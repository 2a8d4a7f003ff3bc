#include <functional>
#include <string>
#include <tuple>
#include <utility>

#include "core/join.h"
#include "core/text.h"
#include "io/file_bytes.h"
#include "models/config_file.h"
#include "models/family_table.h"
#include "models/vision_config_file.h"

namespace polyhead::models {
namespace {

// Reads the sizes that the configs of the image side and of the text side have under the same keys.
nn::LayerConfig read_layer(ConfigFile& file, const VisionDefaults& defaults) {
  nn::LayerConfig layer{.seed = 0};
  layer.width = file.size("hidden_size", defaults.width);
  layer.heads = file.size("num_attention_heads", defaults.heads);
  if (layer.width % layer.heads != 0) file.fail_at("num_attention_heads", cat("is ", layer.heads, "; it must divide hidden_size = ", layer.width));
  layer.hidden_width = file.size("intermediate_size", defaults.hidden_width);
  layer.activation = file.activation("hidden_act", defaults.activation);
  layer.epsilon = file.positive("layer_norm_eps", defaults.epsilon);
  layer.norm_position = nn::NormPosition::pre;
  return layer;
}

VisionConfig read_vision_part(ConfigFile& file, const VisionFamily& family) {
  const VisionDefaults& defaults = family.defaults;
  VisionConfig config;
  config.family = family.model_type;
  file.find("model_type");
  config.channels = file.size("num_channels", 3, kMostChannels);
  std::tie(config.height, config.width) = read_sides(file, "image_size", defaults.image);
  std::tie(config.patch_height, config.patch_width) = read_sides(file, "patch_size", defaults.patch);
  if (config.patch_height > config.height || config.patch_width > config.width)
    file.fail_at("patch_size", cat("is ", config.patch_height, " x ", config.patch_width, "; image_size is ", config.height, " x ", config.width, ", which holds no patch"));
  config.layers = file.size("num_hidden_layers", defaults.layers, kMostLayers);
  config.layer = read_layer(file, defaults);
  if (family.qkv_bias_key) config.layer.bias = file.get<bool>("qkv_bias").value_or(true);
  config.class_token = !family.tensors.class_token.empty();
  config.distillation_token = !family.tensors.distillation_token.empty();
  config.norm_of_pooled = family.norm_of_pooled;
  config.pooling = family.pooling;
  config.classified = family.classified;
  if (family.pooling == VisionPooling::dense) {
    config.pooler_activation = file.activation("pooler_act", "tanh");
    file.find("pooler_output_size");  // marks the key as read: the pooler's tensor has this size anyway
  }
  if (family.pooling == VisionPooling::attention && !file.get<bool>("vision_use_head").value_or(true)) config.pooling = VisionPooling::none;
  file.require_all_read(family.model_type, family.without_effect);
  return config;
}

TextSideConfig read_text_side_part(ConfigFile& file, const TextSideFamily& family) {
  TextSideConfig config;
  config.family = family.model_type;
  file.find("model_type");
  config.vocabulary = file.size("vocab_size", family.vocabulary);
  config.positions = file.size("max_position_embeddings", family.positions_count);
  config.layers = file.size("num_hidden_layers", 12, kMostLayers);
  config.layer = read_layer(file, {.width = family.width, .heads = family.heads, .hidden_width = family.hidden_width, .activation = family.activation, .epsilon = family.epsilon});
  config.causal = family.causal;
  config.pooling = family.pooling;
  if (family.pooling == TextPooling::end_token) {
    config.end_token = file.get<std::int64_t>("eos_token_id").value_or(49407);
    if (config.end_token == 2) config.pooling = TextPooling::largest_id;  // transformers' rule for files written before its version 4.31
  }
  file.require_all_read(family.model_type, family.without_effect);
  return config;
}

}  // namespace

std::pair<std::int64_t, std::int64_t> read_sides(ConfigFile& file, std::string_view key, std::int64_t otherwise) {
  const io::Json* given = file.find(key);
  const auto* list = given == nullptr ? nullptr : given->as<io::Json::Array>();
  if (list == nullptr) {
    const std::int64_t side = file.size(key, otherwise, kMostPixels);
    return {side, side};
  }
  std::int64_t side[2] = {};
  for (std::size_t i = 0; i < 2; ++i) {
    const auto* number = list->size() == 2 ? (*list)[i].as<std::uint64_t>() : nullptr;
    if (number == nullptr || *number < 1 || *number > kMostPixels) file.fail_at(key, cat("is neither a number nor a list of two numbers (height and width) in [1,", kMostPixels, "]"));
    side[i] = static_cast<std::int64_t>(*number);
  }
  return {side[0], side[1]};
}

std::vector<std::string> read_labels(const ConfigFile& file) {
  std::vector<std::string> labels;
  const io::Json* given = JsonFile::find(file.file().root(), "id2label");
  const auto* object = given == nullptr ? nullptr : given->as<io::Json::Object>();
  if (object == nullptr) return labels;
  for (std::size_t i = 0; i < object->size(); ++i) {
    const io::Json* label = given->find(cat(i));
    const auto* text = label == nullptr ? nullptr : label->as<std::string>();
    if (text == nullptr) return {};  // the file numbers its labels in another way; leave them out, because they are only for display
    labels.push_back(*text);
  }
  return labels;
}

// Returns the object of the image encoder or of the text encoder. If CLIP's config has a key NAME_dict, transformers reads that object instead of NAME.
ConfigFile side_of(ConfigFile& file, std::string_view key) {
  const std::string old = cat(key, "_dict");
  file.find(key);
  return file.part(file.find(old) != nullptr ? std::string_view(old) : key);
}

void require_pair_read(ConfigFile& file) {
  static constexpr std::string_view kWithoutEffect[] = {"initializer_factor", "logit_scale_init_value", "projection_dim", "text_config", "text_config_dict", "tie_word_embeddings", "vision_config", "vision_config_dict"};
  file.require_all_read(file.get<std::string>("model_type").value_or(""), kWithoutEffect);
}

const TextSideFamily& text_side_family_of(ConfigFile& file) {
  file.file().require(file.object(), "model_type");
  const std::string type = *file.get<std::string>("model_type");
  if (const TextSideFamily* family = find_text_side_family(type)) return *family;
  if (const ImageTextFamily* pair = find_image_text_family(type)) return *find_text_side_family(pair->text);
  fail(ErrorCode::unsupported, file.name(), ": model_type is '", type, "', which has no text that is compared with images; known are ", join(model_types(text_side_family_rows(), image_text_family_rows())));
}

TextSideConfig read_text_side_config(ConfigFile& file) {
  const TextSideFamily& family = text_side_family_of(file);
  if (find_text_side_family(*file.get<std::string>("model_type")) != nullptr) return read_text_side_part(file, family);
  ConfigFile side = side_of(file, "text_config");
  require_pair_read(file);
  return read_text_side_part(side, family);
}

bool is_timm(ConfigFile& file) { return file.find("model_type") == nullptr && file.find("architecture") != nullptr; }

std::optional<ImageModelKind> image_model_kind(const std::filesystem::path& folder) {
  if (!io::file_exists(folder / "config.json")) return std::nullopt;
  const JsonFile file(folder / "config.json");
  const io::Json* given = JsonFile::find(file.root(), "model_type");
  const auto* type = given == nullptr ? nullptr : given->as<std::string>();
  if (given == nullptr && JsonFile::find(file.root(), "architecture") != nullptr) return ImageModelKind::vision;  // timm
  if (type == nullptr) return std::nullopt;
  if (find_vision_family(*type) != nullptr) return ImageModelKind::vision;
  if (find_text_side_family(*type) != nullptr) return ImageModelKind::text;
  if (find_image_text_family(*type) != nullptr) {
    // CLIPForImageClassification has the image encoder alone.
    const io::Json* architectures = JsonFile::find(file.root(), "architectures");
    const auto* list = architectures == nullptr ? nullptr : architectures->as<io::Json::Array>();
    const auto* name = list == nullptr || list->size() != 1 ? nullptr : list->front().as<std::string>();
    return name != nullptr && name->ends_with("ForImageClassification") ? ImageModelKind::vision : ImageModelKind::both;
  }
  return std::nullopt;
}

const VisionFamily& vision_family_of(ConfigFile& file) {
  if (is_timm(file)) return timm_family();
  file.file().require(file.object(), "model_type");
  const std::string type = *file.get<std::string>("model_type");
  if (const VisionFamily* family = find_vision_family(type)) return *family;
  if (const ImageTextFamily* pair = find_image_text_family(type)) return *find_vision_family(pair->vision);
  const std::vector<std::string_view> names = vision_families();
  fail(ErrorCode::unsupported, file.name(), ": model_type is '", type, "'; known encoders of images are ", join(names), "; the nearest is '", nearest_name(names, std::identity(), type), "'");
}

VisionConfig read_vision_config(ConfigFile& file) {
  const VisionFamily& family = vision_family_of(file);
  if (is_timm(file)) return read_timm_config(file);
  if (find_vision_family(*file.get<std::string>("model_type")) != nullptr) return read_vision_part(file, family);
  ConfigFile side = side_of(file, "vision_config");
  require_pair_read(file);
  return read_vision_part(side, family);
}

VisionConfig read_vision_config(const std::filesystem::path& folder) {
  ConfigFile file(folder / "config.json");
  VisionConfig config = read_vision_config(file);
  config.labels = read_labels(file);
  return config;
}

}  // namespace polyhead::models
