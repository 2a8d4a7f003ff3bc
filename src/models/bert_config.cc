#include <string>

#include "core/text.h"
#include "models/json_file.h"
#include "polyhead/models/bert.h"

namespace polyhead::models {
namespace {

// Reads the activation by its name in `transformers`, where "gelu" is the exact GELU.
nn::Activation activation_of(const JsonFile& file) {
  const std::string name = file.get<std::string>(file.root(), "hidden_act").value_or("gelu");
  if (name == "gelu") return nn::Activation::gelu;
  if (name == "relu") return nn::Activation::relu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return nn::Activation::gelu_tanh;
  fail(ErrorCode::unsupported, file.name(), ": hidden_act is '", name, "'; gelu, gelu_new, gelu_pytorch_tanh and relu are known");
}

std::int64_t positive(const JsonFile& file, std::string_view key) {
  file.require(file.root(), key);
  const std::int64_t value = *file.get<std::int64_t>(file.root(), key);
  // With this limit, products of two sizes do not overflow 64 bits.
  constexpr std::int64_t kMax = std::int64_t{1} << 31;
  if (value < 1 || value > kMax) file.fail_at("", key, cat("is ", value, "; it must be in [1, 2^31]"));
  return value;
}

void require_text(const JsonFile& file, std::string_view key, std::string_view wanted) {
  const auto value = file.get<std::string>(file.root(), key);
  if (value && *value != wanted)
    fail(ErrorCode::unsupported, file.name(), ": ", key, " is '", *value, "'; only '", wanted, "' is supported");
}

}  // namespace

BertConfig read_bert_config(const std::filesystem::path& path) {
  const JsonFile file(path);
  require_text(file, "model_type", "bert");
  require_text(file, "position_embedding_type", "absolute");
  for (const std::string_view key : {"is_decoder", "add_cross_attention"})
    if (file.get<bool>(file.root(), key).value_or(false))
      fail(ErrorCode::unsupported, file.name(), ": ", key, " is true; only encoders are supported");

  BertConfig config;
  config.vocabulary = positive(file, "vocab_size");
  config.positions = positive(file, "max_position_embeddings");
  config.segments = positive(file, "type_vocab_size");
  config.width = positive(file, "hidden_size");
  config.layers = positive(file, "num_hidden_layers");
  config.heads = positive(file, "num_attention_heads");
  config.hidden_width = positive(file, "intermediate_size");
  config.activation = activation_of(file);
  config.epsilon = file.get<double>(file.root(), "layer_norm_eps").value_or(config.epsilon);
  if (!(config.epsilon > 0)) file.fail_at("", "layer_norm_eps", cat("is ", config.epsilon, "; it must be above 0"));
  if (config.width % config.heads != 0)
    fail(ErrorCode::format, file.name(), ": num_attention_heads is ", config.heads, "; it must divide hidden_size = ", config.width);
  return config;
}

}  // namespace polyhead::models
