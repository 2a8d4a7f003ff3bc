#include <algorithm>
#include <cmath>
#include <string>

#include "core/text.h"
#include "models/language_config_file.h"
#include "models/sequence_families.h"
#include "polyhead/models/sequence_to_sequence_model.h"

namespace polyhead::models {
namespace {

struct FeedForwardKind {
  nn::Activation activation;
  bool gated = false;
};

// T5's name "gated-gelu" means a gate with the tanh form of gelu. Every other name means the function that it names, with or without a gate.
FeedForwardKind feed_forward_of(ConfigFile& file, const SequenceFamily& family) {
  const std::string_view key = family.keys.activation;
  const std::string name = file.get<std::string>(key).value_or(std::string(family.activation));
  if (!family.gated_by_activation) return {file.named_activation(key, name)};
  constexpr std::string_view kGated = "gated-";
  const bool gated = name.starts_with(kGated);
  const std::string function = name == "gated-gelu" ? "gelu_new" : gated ? name.substr(kGated.size()) : name;
  // transformers also writes the keys dense_act_fn and is_gated_act, which follow from this name, and reads them again; so they must agree with the name.
  if (const auto written = file.get<std::string>("dense_act_fn"); written && *written != function) file.unsupported("dense_act_fn", cat("is '", *written, "'; ", key, " = '", name, "' makes it '", function, "'"));
  if (const auto written = file.get<bool>("is_gated_act"); written && *written != gated) file.unsupported("is_gated_act", cat("is ", *written, "; ", key, " = '", name, "' makes it ", gated));
  const FeedForwardKind kind{file.named_activation(key, function), gated};
  file.require_not_null("is_gated_act");  // transformers would read null as false
  return kind;
}

// Reads settings of the layers that encoder and decoder have in common.
template <class Layer>
void read_layer(ConfigFile& file, const SequenceFamily& family, std::string_view heads, std::string_view hidden_width, const FeedForwardKind& kind, Layer& layer) {
  const SequenceKeys& keys = family.keys;
  layer.width = file.size(keys.width);
  layer.heads = layer.kv_heads = file.size(heads);
  if (keys.head_width.empty() && layer.width % layer.heads != 0) file.fail_at(heads, cat("is ", layer.heads, "; it must divide ", keys.width, " = ", layer.width));
  layer.head_width = keys.head_width.empty() ? layer.width / layer.heads : file.size(keys.head_width);
  if (layer.heads * layer.head_width > ConfigFile::kLargestExtent)
    file.fail_at(heads, cat("is ", layer.heads, " with heads of ", layer.head_width, "; their product may be at most ", ConfigFile::kLargestExtent));
  layer.hidden_width = file.size(hidden_width);
  layer.activation = kind.activation, layer.gated = kind.gated;
  layer.bias = layer.output_bias = layer.feed_forward_bias = family.bias;
  layer.norm = family.norm, layer.norm_position = family.norm_position;
  layer.epsilon = family.keys.epsilon.empty() ? family.epsilon : file.positive(family.keys.epsilon, family.epsilon);
}

void read_relative_bias(ConfigFile& file, SequenceToSequenceConfig& config) {
  constexpr const char *kBuckets = "relative_attention_num_buckets", *kDistance = "relative_attention_max_distance";
  config.buckets = file.size(kBuckets, 32, 1 << 20);
  if (config.buckets < 4 || config.buckets % 2 != 0) file.fail_at(kBuckets, cat("is ", config.buckets, "; it must be even and at least 4"));
  config.max_distance = file.size(kDistance, 128);
  // In the decoder all buckets are for one direction, so max_distance must be above half the number of buckets (relative_bucket()).
  if (config.max_distance <= config.buckets / 2) file.fail_at(kDistance, cat("is ", config.max_distance, "; it must be above half of ", kBuckets, " = ", config.buckets));
}

AnswerRules read_rules(ConfigFile& file, const SequenceFamily& family, const std::filesystem::path& folder) {
  const std::optional<JsonFile> own = read_generation_config(folder);
  const JsonFile& generation = own ? *own : file.file();
  AnswerRules rules = answer_rules(file, own);
  const auto given = [&](std::string_view key) { return own || generation.root().find(key) != nullptr; };
  rules.start_token = given("decoder_start_token_id") ? one_token(generation, "decoder_start_token_id") : family.start_token;
  if (!rules.start_token && given("bos_token_id")) rules.start_token = one_token(generation, "bos_token_id");
  if (!given("forced_eos_token_id")) rules.forced_last = family.forced_last;
  return rules;
}

// If a file of T5 or mT5 has an output projection, transformers 5 uses it. transformers 4 decides by tie_word_embeddings instead; for T5 polyhead does the same
// as transformers 4, unless scale_decoder_outputs tells whether the decoder's hidden states are scaled.
void read_output(ConfigFile& file, const SequenceFamily& family, SequenceConfigRead& read) {
  const bool tied = file.get<bool>("tie_word_embeddings").value_or(true);
  read.config.tied_output = tied;
  if (!family.own_output) {
    if (!tied) file.unsupported("tie_word_embeddings", cat("is false; with models of the type ", family.model_type, " only true is supported"));
    return;
  }
  if (family.output_scale == OutputScale::none) {
    read.output_by_file = true;
    return;
  }
  file.require_not_null("scale_decoder_outputs");  // transformers would read null as false
  const std::optional<bool> scaled = file.get<bool>("scale_decoder_outputs");
  read.output_by_file = scaled.has_value();
  if (scaled.value_or(tied)) read.config.output_scale = 1 / std::sqrt(static_cast<double>(read.config.encoder.width));
}

}  // namespace

SequenceToSequenceConfig read_sequence_to_sequence_config(const std::filesystem::path& path, const LanguageLoadOptions& options) { return read_sequence_config(path, options).config; }

SequenceConfigRead read_sequence_config(const std::filesystem::path& path, const LanguageLoadOptions& options) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const std::filesystem::path folder = is_folder ? path : path.parent_path();
  ConfigFile file(is_folder ? path / "config.json" : path);
  file.file().require(file.file().root(), "model_type");
  const SequenceFamily& family = find_sequence_family(file.name(), *file.get<std::string>("model_type"));
  const SequenceKeys& keys = family.keys;
  if (!file.get<bool>("is_encoder_decoder").value_or(true)) file.unsupported("is_encoder_decoder", cat("is false; models of the type ", family.model_type, " have an encoder and a decoder"));
  SequenceConfigRead read;
  SequenceToSequenceConfig& config = read.config;
  config.family = family.model_type;
  config.vocabulary = config.target_vocabulary = file.size("vocab_size");
  config.encoder_layers = file.size(keys.encoder_layers, 0, kMostLayers);
  if (!family.gated_by_activation) file.require_same(keys.encoder_layers, "num_hidden_layers");
  config.decoder_layers = file.size(keys.decoder_layers, family.gated_by_activation ? config.encoder_layers : 0, kMostLayers);
  const FeedForwardKind kind = feed_forward_of(file, family);
  read_layer(file, family, keys.encoder_heads, keys.encoder_hidden_width, kind, config.encoder);
  read_layer(file, family, keys.decoder_heads, keys.decoder_hidden_width, kind, config.decoder);
  config.attention_scale = family.attention_scale;
  config.embedding_norm = !family.tensors.embedding_norm.empty();
  if (family.positions == SequencePositions::relative) {
    read_relative_bias(file, config);
  } else {
    config.source_positions = file.size(keys.source_positions);
    config.target_positions = file.size(keys.target_positions);
    config.position_offset = family.position_offset;
    if (!keys.scale_embedding.empty() && file.get<bool>(keys.scale_embedding).value_or(false)) config.embedding_scale = std::sqrt(static_cast<double>(config.encoder.width));
  }
  if (!keys.features.empty()) {
    config.features = file.size(keys.features);
    config.shared_embedding = false;
  }
  if (family.may_split_embedding) {
    config.shared_embedding = file.get<bool>("share_encoder_decoder_embeddings").value_or(true);
    const std::int64_t own = file.size("decoder_vocab_size", config.vocabulary);
    if (!config.shared_embedding) config.target_vocabulary = own;
    if (own != config.target_vocabulary) file.fail_at("decoder_vocab_size", cat("is ", own, "; with share_encoder_decoder_embeddings it must be vocab_size = ", config.vocabulary));
  }
  read_output(file, family, read);
  config.answer = read_rules(file, family, folder);
  for (const std::string_view key : {"decoder_start_token_id", "bos_token_id", "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids"}) file.find(key);
  file.require_all_read(family.model_type, keys.without_effect, options.ignored_keys, kIgnoredKeysRemedy);
  return read;
}

}  // namespace polyhead::models
