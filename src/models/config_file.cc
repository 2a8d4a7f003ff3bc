#include "models/config_file.h"

#include "core/join.h"
#include "io/file_bytes.h"
#include "models/language_families.h"

namespace polyhead::models {
namespace {

// Names of activations, as in `transformers`. "gelu_fast" is not supported: its formula is the tanh form of gelu with one constant rounded differently.
struct ActivationName {
  std::string_view name;
  nn::Activation activation;
};

constexpr ActivationName kActivationNames[] = {{"gelu", nn::Activation::gelu},
                                                      {"gelu_new", nn::Activation::gelu_tanh},
                                                      {"gelu_pytorch_tanh", nn::Activation::gelu_tanh},
                                                      {"quick_gelu", nn::Activation::quick_gelu},
                                                      {"relu", nn::Activation::relu},
                                                      {"sigmoid", nn::Activation::sigmoid},
                                                      {"silu", nn::Activation::silu},
                                                      {"swish", nn::Activation::silu},
                                                      {"tanh", nn::Activation::tanh}};

std::string described(const io::Json& json) {
  const auto* flag = json.as<bool>();
  return flag != nullptr ? cat(*flag) : io::describe(json);
}

bool is_neutral(const io::Json& value, std::string_view neutral) {
  if (const auto* flag = value.as<bool>()) return neutral == cat(*flag);
  if (const auto* number = value.as<std::uint64_t>()) return neutral == cat(*number);
  if (const auto* number = value.as<double>()) return neutral == cat(*number);
  const auto* object = value.as<io::Json::Object>();
  return object != nullptr && object->empty() && neutral == "{}";
}

bool is_mxfp4(const io::Json& quantization) {
  const io::Json* method = quantization.as<io::Json::Object>() == nullptr ? nullptr : quantization.find("quant_method");
  const auto* name = method == nullptr ? nullptr : method->as<std::string>();
  return name != nullptr && *name == "mxfp4";
}

void require_no_adapter(const std::filesystem::path& folder, const std::string& name) {
  if (!io::file_exists(folder / "adapter_config.json")) return;
  fail(ErrorCode::unsupported, name, ": adapter_config.json beside it describes an adapter (PEFT), which polyhead does not apply; merge it with merge_and_unload() and save the model again");
}

}  // namespace

ConfigFile::ConfigFile(const std::filesystem::path& path) : file_(std::make_shared<const JsonFile>(path)), object_(&file_->root()) { require_no_adapter(path.parent_path(), file_->name()); }

nn::Activation ConfigFile::named_activation(std::string_view key, std::string_view name) const {
  const auto found = std::ranges::find(kActivationNames, name, &ActivationName::name);
  if (found == std::end(kActivationNames)) unsupported(key, cat("is '", name, "'; ", join(kActivationNames, &ActivationName::name), " are known"));
  return found->activation;
}

std::vector<std::string> ConfigFile::layer_types(std::int64_t layers) {
  const io::Json* given = find("layer_types");
  if (given == nullptr) return {};
  const auto* list = given->as<io::Json::Array>();
  if (list == nullptr) fail_at("layer_types", cat("is ", io::describe(*given), "; it must be a list of one word for each of the ", layers, " layers"));
  if (std::ssize(*list) != layers) fail_at("layer_types", cat("has ", list->size(), " words; it must have one for each of the ", layers, " layers"));
  std::vector<std::string> words;
  for (const io::Json& item : *list) {
    const auto* word = item.as<std::string>();
    if (word == nullptr || (*word != "full_attention" && *word != "sliding_attention"))
      unsupported("layer_types", cat("has ", io::describe(item), "; full_attention and sliding_attention are known"));
    words.push_back(*word);
  }
  return words;
}

void ConfigFile::require_same(std::string_view key, std::string_view alias) {
  if (find(alias) != nullptr && size(alias) != size(key)) fail_at(alias, cat("is ", size(alias), " and ", key, " is ", size(key), "; both keys must have the same value"));
}

void ConfigFile::require_all_read(std::string_view family, std::span<const std::string_view> without_effect, std::span<const std::string> ignored, std::string_view remedy) const {
  for (const auto& [key, value] : *object_->as<io::Json::Object>()) {
    const auto is_in = [&name = key](const auto& list) { return std::ranges::find(list, name) != list.end(); };
    if (value.as<std::nullptr_t>() != nullptr || was_read(key) || is_without_effect(key) || is_in(without_effect) || is_in(ignored)) continue;
    if (key == "quantization_config" && is_mxfp4(value))
      fail(ErrorCode::unsupported, name(), ": the weights are MXFP4, which polyhead does not read. This line converts them: python -c \"import transformers as t; t.AutoModelForCausalLM.from_pretrained('FOLDER', "
           "quantization_config=t.Mxfp4Config(dequantize=True), dtype='bfloat16').save_pretrained('FOLDER-bf16')\"");
    const std::string_view neutral = neutral_value(key), dot = where_.empty() ? "" : ".";
    if (neutral.empty())
      fail(ErrorCode::unsupported, name(), ": ", where_, dot, where_.empty() ? io::quote(key) : key, " is ", described(value), "; models of the type ", family,
           " are not known to have this key, and it may change results", remedy);
    if (!is_neutral(value, neutral))
      fail(ErrorCode::unsupported, name(), ": ", where_, dot, key, " is ", described(value), "; with models of the type ", family, " only ", neutral, " is supported");
  }
}

void ConfigFile::require_without_effect(std::string_view family, std::span<const Effect> effects) const {
  for (const auto& [key, neutral] : effects) {
    const io::Json* value = JsonFile::find(*object_, key);
    if (value == nullptr || was_read(key) || is_neutral(*value, neutral)) continue;
    const auto* word = value->as<std::string>();
    if (word != nullptr && *word == neutral) continue;
    unsupported(key, cat("is ", described(*value), "; models of the type ", family, " are not known to have this key, and it may change results"));
  }
}

}  // namespace polyhead::models
