#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "io/int8_rows.h"
#include "models/bert_embeddings.h"
#include "models/checkpoint.h"
#include "models/encoder_families.h"
#include "polyhead/models/bert.h"

namespace polyhead::models {
namespace {

// Checkpoints converted from TensorFlow call the weight of a norm gamma and its bias beta.
nn::LayerNorm bert_norm(Checkpoint& file, const std::string& name, std::int64_t width, const BertConfig& config) {
  const bool old = file.find(name + ".weight") == nullptr && file.find(name + ".gamma") != nullptr;
  Tensor weight = file.take(name + (old ? ".gamma" : ".weight"), {width});
  return nn::LayerNorm(std::move(weight), config.norm_bias ? file.take(name + (old ? ".beta" : ".bias"), {width}) : Tensor(), config.epsilon);
}

// Returns the prefix of a layer's tensors: "encoder.layer.3.", or "encoder.albert_layer_groups.0.albert_layers.3." if layers are stored in groups.
std::string layer_prefix(const EncoderFamily& family, std::int64_t index, std::int64_t of_a_group) {
  if (!family.grouped_layers) return cat(family.tensors.layer, index, ".");
  return cat(family.tensors.layer, index / of_a_group, ".albert_layers.", index % of_a_group, ".");
}

// ESM's files may hold the frequencies of the rotary positions, rounded as in training. transformers uses the frequencies of the file, so polyhead reads them.
void read_frequencies(const Checkpoint& file, const std::string& prefix, BertConfig& config) {
  const Tensor* stored = nullptr;
  std::string name;
  // transformers 5.24 writes the name with an asterisk.
  for (const char* known : {"rotary_embeddings.inv_freq", "encoder.layer.*.attention.self.rotary_embeddings.inv_freq", "encoder.layer.0.attention.self.rotary_embeddings.inv_freq"})
    if (stored == nullptr) stored = file.find(name = cat(prefix, known));
  if (stored == nullptr) return;
  nn::RotaryEmbeddingConfig& rotary = *config.rotary;
  if (stored->shape() != Shape{rotary.width / 2} || !is_floating(stored->dtype()))
    fail(ErrorCode::format, file.file_name(), ": '", name, "' is ", stored->dtype(), " ", stored->shape(), "; it must be floating [", rotary.width / 2, "]");
  const Tensor values = Tensor::copy_of(*stored, DType::f64);
  const nn::RotaryEmbedding exact(rotary);
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const double frequency = values.data<double>()[i];
    if (!(frequency > 0) || !std::isfinite(frequency)) fail(ErrorCode::format, file.file_name(), ": '", name, "' has the value ", frequency, "; frequencies must be above 0 and finite");
    rotary.factors.push_back(exact.frequencies()[static_cast<std::size_t>(i)] / frequency);
  }
  rotary.scaling = nn::RotaryScaling::longrope;  // longrope divides each frequency by its factor
  rotary.attention_factor = 1;
}

// Returns whether a tensor is a table that versions of transformers saved and that follows from the config.
bool is_buffer(std::string_view name, const BertConfig& config) {
  for (const std::string_view end : {"embeddings.position_ids", "embeddings.token_type_ids", ".inv_freq"})
    if (name.ends_with(end)) return true;
  // Files of ESM with rotary positions also hold learned positions, which transformers does not read.
  return config.rotary && name.ends_with("embeddings.position_embeddings.weight");
}

// Error if the file has a tensor of an encoder (embeddings, layers, norms) that was not taken. Poolers and output heads have other names.
void require_encoder_taken(const Checkpoint& file, const std::string& prefix, const BertConfig& config) {
  file.require_all_taken([&](std::string_view name) {
    if (!name.starts_with(prefix) || is_buffer(name, config)) return true;
    const auto first = [](std::string_view text) { return text.substr(0, text.find('.')); };
    const auto is_part = [&, own = first(name.substr(prefix.size()))](std::string_view part) { return first(part) == own; };
    return std::ranges::none_of(encoder_family_rows(), [&](const EncoderFamily& family) {
      const EncoderTensors& names = family.tensors;
      return std::ranges::any_of(std::initializer_list<std::string_view>{names.words, names.embedding_projection, names.layer, names.final_norm}, is_part);
    });
  });
}

}  // namespace

BertEncoder load_bert_encoder(const std::filesystem::path& directory) {
  BertEncoder encoder;
  encoder.config = read_bert_config(directory / "config.json");
  BertConfig& config = encoder.config;
  const EncoderFamily& family = find_encoder_family("config.json", config.family);
  const EncoderTensors& names = family.tensors;
  io::TensorFile tensors = io::open_tensors(directory);
  io::expand_int8_rows(tensors);
  Checkpoint file(std::move(tensors), family.model_type);
  const std::string type(family.model_type);
  const std::string prefix = file.prefix_of(cat(names.words, ".weight"), {.models = "encoders", .type = cat("a ", type == "bert" ? "BERT" : type, " encoder"), .such_as = cat(" such as '", type, ".'")});
  const auto named = [&](std::string_view name) { return cat(prefix, name); };
  config.dtype = file.dtype();
  const std::int64_t width = config.embedding_width != 0 ? config.embedding_width : config.width;
  const auto embedding = [&](std::string_view name, std::int64_t count) { return nn::Embedding(file.take(cat(prefix, name, ".weight"), {count, width})); };
  encoder.words = embedding(names.words, config.vocabulary);
  if (!config.rotary) encoder.positions = embedding(names.positions, config.positions);
  if (config.segments > 0) encoder.segments = embedding(names.segments, config.segments);
  if (config.embedding_norm) encoder.embedding_norm = bert_norm(file, named(names.embedding_norm), width, config);
  if (config.embedding_width != 0) encoder.embedding_projection = file.linear(named(names.embedding_projection), config.width, width);
  if (config.relative_buckets > 0) encoder.relative_bias = file.take(cat(prefix, names.relative_bias, ".weight"), {config.relative_buckets, config.heads});
  const std::int64_t own_layers = config.shared_layers.empty() ? config.layers : config.shared_layers.back() + 1;
  const auto norm = [&](const std::string& name) { return bert_norm(file, name, config.width, config); };
  EncoderTensors of_layer = names;
  if (!config.first_norm) of_layer.attention_norm = "";
  for (std::int64_t i = 0; i < own_layers; ++i) {
    encoder.layers.push_back(load_encoder_layer(file, of_layer, layer_config(config, 0), named(layer_prefix(family, i, config.layers_of_a_group)), norm));
    of_layer.attention_norm = names.attention_norm;
  }
  if (!names.final_norm.empty()) encoder.final_norm = norm(named(names.final_norm));
  if (family.token_dropout && config.rotary) read_frequencies(file, prefix, config);
  require_encoder_taken(file, prefix, config);
  return encoder;
}

}  // namespace polyhead::models
