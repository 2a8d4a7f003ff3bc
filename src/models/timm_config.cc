// Reads config.json as timm writes it: "architecture" names a function of timm that makes the model, "model_args" has the arguments that were given to this
// function, and "pretrained_cfg" tells how images were prepared. If the name is wrong, loading the tensors fails, because their number and sizes do not fit.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "core/join.h"
#include "core/text.h"
#include "models/vision_config_file.h"

namespace polyhead::models {
namespace {

struct TimmSize {
  std::string_view name;
  std::int64_t width, layers, heads;
  double hidden_per_width = 4;
};
constexpr TimmSize kSizes[] = {{"tiny", 192, 12, 3},   {"small", 384, 12, 6},           {"base", 768, 12, 12},           {"large", 1024, 24, 16},
                               {"huge", 1280, 32, 16}, {"giant", 1408, 40, 16, 48.0 / 11}, {"gigantic", 1664, 48, 16, 64.0 / 13}};

struct Architecture {
  const TimmSize* size = nullptr;
  std::int64_t patch = 0, image = 0;
  bool distilled = false;
};

std::int64_t number_after(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return 0;
  text.remove_prefix(word.size());
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return 0;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

// Parses the names vit_SIZE_patchP_S, deit_SIZE_patchP_S and deit_SIZE_distilled_patchP_S.
Architecture read_architecture(ConfigFile& file) {
  const std::string name = file.get<std::string>("architecture").value_or("");
  std::string_view rest = name;
  Architecture found;
  const bool vit = rest.starts_with("vit_"), deit = rest.starts_with("deit_");
  if (vit || deit) {
    rest.remove_prefix(vit ? 4 : 5);
    for (const TimmSize& size : kSizes)
      if (rest.starts_with(cat(size.name, "_"))) found.size = &size;
    if (found.size != nullptr) {
      rest.remove_prefix(found.size->name.size());
      found.distilled = deit && rest.starts_with("_distilled");
      if (found.distilled) rest.remove_prefix(std::string_view("_distilled").size());
      found.patch = number_after(rest, "_patch");
      found.image = number_after(rest, "_");
    }
  }
  if (found.image < 1 || found.patch < 1 || found.image > kMostPixels || found.patch > found.image || !rest.empty())
    file.unsupported("architecture", cat("is '", name, "'; of timm's models vit_SIZE_patchP_S, deit_SIZE_patchP_S and deit_SIZE_distilled_patchP_S are supported, with the sizes ", join(kSizes, &TimmSize::name)));
  return found;
}

constexpr std::string_view kRootWithoutEffect[] = {"num_features", "num_classes", "label_names", "label_descriptions", "labels", "license"};
constexpr std::string_view kCfgWithoutEffect[] = {"tag",          "url",         "file",        "hf_hub_id",         "hf_hub_filename", "source",        "custom_load",  "fixed_input_size", "num_classes", "pool_size", "first_conv",
                                                  "classifier",   "license",     "origin_url",  "paper_name",        "paper_ids",       "description",   "notes",        "label_names",      "label_descriptions",
                                                  "architecture", "input_size",  "min_input_size", "test_input_size", "test_crop_pct",  "state_dict"};

// Returns the object "model_args". If it is missing, returns the file itself, in which none of the arguments is found.
ConfigFile arguments_of(ConfigFile& file, bool* given) {
  *given = file.find("model_args") != nullptr;
  return *given ? file.part("model_args") : file;
}

}  // namespace

VisionConfig read_timm_config(ConfigFile& file) {
  const Architecture made = read_architecture(file);
  bool given = false;
  ConfigFile arguments = arguments_of(file, &given);
  const auto size = [&](std::string_view key, std::int64_t otherwise) { return given ? arguments.size(key, otherwise) : otherwise; };
  const auto flag = [&](std::string_view key, bool otherwise) { return given ? arguments.get<bool>(key).value_or(otherwise) : otherwise; };
  VisionConfig config;
  config.family = timm_family().model_type;
  config.channels = size("in_chans", 3);
  config.height = config.width = made.image, config.patch_height = config.patch_width = made.patch;
  if (given) {
    std::tie(config.height, config.width) = read_sides(arguments, "img_size", made.image);
    std::tie(config.patch_height, config.patch_width) = read_sides(arguments, "patch_size", made.patch);
  }
  if (config.channels > kMostChannels || config.patch_height > config.height || config.patch_width > config.width)
    file.fail_at("model_args", cat("makes images of ", config.channels, " channels and ", config.height, " x ", config.width, " pixels with patches of ", config.patch_height, " x ", config.patch_width));
  config.layers = size("depth", made.size->layers);
  if (config.layers > kMostLayers) file.fail_at("model_args", cat("has depth ", config.layers, "; it may be at most ", kMostLayers));
  nn::LayerConfig& layer = config.layer;
  layer.width = size("embed_dim", made.size->width);
  layer.heads = size("num_heads", made.size->heads);
  if (layer.width % layer.heads != 0) file.fail_at("model_args", cat("has num_heads ", layer.heads, "; it must divide embed_dim = ", layer.width));
  const double ratio = given ? arguments.positive("mlp_ratio", made.size->hidden_per_width) : made.size->hidden_per_width;
  if (ratio > 1024) file.fail_at("model_args", cat("has mlp_ratio ", ratio, "; it may be at most 1024"));
  layer.hidden_width = static_cast<std::int64_t>(static_cast<double>(layer.width) * ratio);
  if (layer.hidden_width < 1) file.fail_at("model_args", cat("has mlp_ratio ", ratio, ", which leaves no hidden unit"));
  layer.activation = nn::Activation::gelu;
  layer.epsilon = 1e-6;
  layer.norm_position = nn::NormPosition::pre;
  layer.bias = flag("qkv_bias", true);
  config.class_token = flag("class_token", true);
  config.distillation_token = made.distilled;
  if (given && arguments.find("reg_tokens") != nullptr) {
    const std::int64_t registers = arguments.get<std::int64_t>("reg_tokens").value_or(0);
    if (registers < 0 || registers > 1024) file.fail_at("model_args", cat("has reg_tokens ", registers, "; it must be in [0, 1024]"));
    config.registers = registers;
  }
  config.prefix_positions = !flag("no_embed_class", false);
  std::string pooling = file.get<std::string>("global_pool").value_or("token");
  if (given) pooling = arguments.get<std::string>("global_pool").value_or(pooling);
  if (pooling != "token" && pooling != "avg") file.unsupported("global_pool", cat("is '", pooling, "'; token and avg are supported"));
  if (pooling == "token" && !config.class_token) file.fail_at("global_pool", "is 'token' and class_token is false");
  config.pooling = config.classified = pooling == "token" ? VisionPooling::class_token : VisionPooling::patch_mean;
  config.norm_of_pooled = flag("fc_norm", pooling == "avg");
  if (given) {
    static constexpr std::string_view kWithoutEffect[] = {"num_classes", "weight_init", "drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "fix_init"};
    arguments.require_all_read("timm", kWithoutEffect);
  }
  file.find("pretrained_cfg");
  file.find("model_type");
  file.require_all_read("timm", kRootWithoutEffect);
  return config;
}

ImageProcessor read_timm_processor(ConfigFile& file) {
  const VisionConfig config = read_timm_config(file);
  ConfigFile cfg = file.part("pretrained_cfg");
  ImageProcessor processor;
  constexpr std::array kMean{0.485, 0.456, 0.406}, kDeviation{0.229, 0.224, 0.225};
  processor.mean = read_colours(cfg, "mean", kMean, false);
  processor.deviation = read_colours(cfg, "std", kDeviation, true);
  processor.factor = 1.0 / 255;
  const std::string interpolation = cfg.get<std::string>("interpolation").value_or("bicubic");
  if (interpolation != "bicubic" && interpolation != "bilinear") cfg.unsupported("interpolation", cat("is '", interpolation, "'; bicubic and bilinear are supported"));
  processor.resampling = interpolation == "bicubic" ? Resampling::bicubic : Resampling::bilinear;
  const std::string mode = cfg.get<std::string>("crop_mode").value_or("center");
  if (mode != "center" || config.height != config.width) cfg.unsupported("crop_mode", cat("is '", mode, "' and images are ", config.height, " x ", config.width, "; 'center' and squares are supported"));
  const double part = cfg.positive("crop_pct", 0.875);
  if (part > 1) cfg.fail_at("crop_pct", cat("is ", part, "; it must be in (0, 1]"));
  processor.shortest_edge = static_cast<std::int64_t>(std::floor(static_cast<double>(config.height) / part));
  processor.crop = ImageProcessor::Size{config.height, config.width};
  processor.crop_half_even = true;
  cfg.require_all_read("timm", kCfgWithoutEffect);
  return processor;
}

}  // namespace polyhead::models
