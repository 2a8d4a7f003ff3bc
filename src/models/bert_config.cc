#include <algorithm>
#include <string>
#include <utility>

#include "core/text.h"
#include "models/config_file.h"
#include "models/encoder_families.h"
#include "models/family_table.h"
#include "models/projection_names.h"
#include "polyhead/models/bert.h"

namespace polyhead::models {
namespace {

// Reads the config.json of one family.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path)
      : file_(path), family_(find_encoder_family(file_.name(), file_.get<std::string>("model_type").value_or("bert"))) {}

  BertConfig read();

 private:
  bool flag(std::string_view key) { return file_.get<bool>(key).value_or(false); }

  void require_supported(std::string_view positions);
  std::optional<std::int64_t> token(std::string_view key, std::int64_t vocabulary);
  void read_positions(BertConfig& config);
  void read_groups(BertConfig& config);
  void read_esm(BertConfig& config);
  void read_modernbert(BertConfig& config);
  double rotary_base(std::string_view layers, std::string_view old_key, double otherwise);

  ConfigFile file_;
  const EncoderFamily& family_;
};

// Other keys that no family reads are accepted: files of encoders hold many keys of training scripts.
constexpr ConfigFile::Effect kEffects[] = {
    {"quantization_config", ""}, {"quantization", ""}, {"compression_config", ""}, {"rope_theta", ""}, {"rope_scaling", ""}, {"rope_parameters", ""}, {"partial_rotary_factor", "1"},
    {"alibi", "false"}, {"use_alibi", "false"}, {"alibi_starting_size", ""}, {"use_gated_mlp", "false"}, {"gated_mlp", "false"}, {"is_gated_act", "false"}, {"feed_forward_type", "original"},
    {"sliding_window", ""}, {"use_sliding_window", "false"}, {"layer_types", ""}, {"is_causal", "false"}, {"use_qk_norm", "false"}, {"qk_norm", "false"}, {"use_rms_norm", "false"},
    {"num_experts", ""}, {"num_local_experts", ""},
};

// Error if a key asks for something that would change the results and that polyhead supports in no encoder family.
void Reader::require_supported(std::string_view positions) {
  if (family_.positions == EncoderPositions::by_type) file_.require_not_null("position_embedding_type");  // with null, transformers would add no positions
  const auto text = file_.get<std::string>("position_embedding_type");
  if (text && *text != "absolute" && *text != positions)
    file_.unsupported("position_embedding_type", cat("is '", *text, "'; only 'absolute'", positions.empty() ? "" : cat(" and '", positions, "'"), " is supported"));
  for (const std::string_view key : {"is_decoder", "add_cross_attention"})
    if (flag(key)) file_.unsupported(key, "is true; only encoders are supported");
  if (flag("is_folding_model")) file_.unsupported("is_folding_model", "is true; ESMFold is not supported");
  if (const io::Json* pruned = file_.find("pruned_heads")) {
    const auto* heads = pruned->as<io::Json::Object>();
    if (heads == nullptr || !heads->empty()) file_.unsupported("pruned_heads", "names heads; layers without some of their heads are not supported");
  }
  for (const std::string_view key : {"rope_scaling", "rope_parameters"})
    if (family_.positions == EncoderPositions::by_type && file_.find(key) != nullptr) file_.unsupported(key, "is given; models of the type esm have rope_theta alone");
}

std::optional<std::int64_t> Reader::token(std::string_view key, std::int64_t vocabulary) {
  const auto id = file_.get<std::int64_t>(key);
  if (id && (*id < 0 || *id >= vocabulary)) file_.fail_at(key, cat("is ", *id, "; it must be in [0, ", vocabulary, "), the vocabulary"));
  return id;
}

void Reader::read_positions(BertConfig& config) {
  EncoderPositions positions = family_.positions;
  if (positions == EncoderPositions::by_type) {
    const bool rotary = file_.get<std::string>("position_embedding_type").value_or("absolute") == "rotary";
    positions = rotary ? EncoderPositions::rotary : EncoderPositions::after_padding;
  }
  if (positions == EncoderPositions::rotary) {
    if (config.width / config.heads % 2 != 0)
      file_.fail_at(family_.keys.heads, cat("is ", config.heads, " and ", family_.keys.width, " ", config.width, "; rotary positions need heads of an even width"));
    config.rotary = nn::RotaryEmbeddingConfig{.width = config.width / config.heads};
  }
  if (positions != EncoderPositions::after_padding) return;
  constexpr std::string_view kKey = "pad_token_id";
  std::optional<std::int64_t> padding = family_.fixed_padding_token ? std::nullopt : token(kKey, config.vocabulary);
  if (!padding && family_.padding_token >= 0) padding = family_.padding_token;
  if (!padding) file_.fail_at(kKey, "is missing; positions are counted from it");
  config.padding_token = padding;
  if (config.longest() < 1)
    file_.fail_at(family_.keys.positions, cat("is ", config.positions, "; positions begin at the padding token + 1 = ", *padding + 1, ", so it must be above that"));
}

void Reader::read_groups(BertConfig& config) {
  const std::int64_t steps = config.layers, groups = file_.size("num_hidden_groups", 1, kMostLayers), inner = file_.size("inner_group_num", 1, kMostLayers);
  if (groups > steps) file_.fail_at("num_hidden_groups", cat("is ", groups, "; it may be at most ", family_.keys.layers, " = ", steps));
  if (steps * inner > kMostLayers) file_.fail_at("inner_group_num", cat("is ", inner, " and ", family_.keys.layers, " is ", steps, "; their product may be at most ", kMostLayers));
  config.layers = steps * inner;
  config.layers_of_a_group = inner;
  for (std::int64_t i = 0; i < steps; ++i) {
    const auto group = static_cast<std::int64_t>(static_cast<double>(i) / (static_cast<double>(steps) / static_cast<double>(groups)));  // rounds like transformers
    for (std::int64_t j = 0; j < inner; ++j) config.shared_layers.push_back(group * inner + j);
  }
}

void Reader::read_esm(BertConfig& config) {
  file_.find("rope_theta");  // has no effect on learned positions
  config.embedding_norm = flag("emb_layer_norm_before");
  config.zero_padding = true;
  if (config.rotary) config.rotary->base = file_.positive("rope_theta", 10000);
  if (!flag("token_dropout")) return;
  config.mask_token = token("mask_token_id", config.vocabulary);
  if (!config.mask_token) file_.fail_at("mask_token_id", "is missing; token_dropout is true and scales the embeddings by the number of masked tokens");
}

// Returns the base of the rotary positions of the layers of the kind `layers`: rope_parameters[layers].rope_theta (transformers 5), else the value of the key
// `old_key` (transformers 4), else `otherwise`.
double Reader::rotary_base(std::string_view layers, std::string_view old_key, double otherwise) {
  if (file_.find("rope_parameters") == nullptr) return file_.positive(old_key, otherwise);
  constexpr std::string_view kLayers[] = {"full_attention", "sliding_attention"}, kKeys[] = {"rope_type", "rope_theta"};
  ConfigFile all = file_.part("rope_parameters");
  all.allow_only(kLayers);
  if (all.find(layers) == nullptr) return file_.positive(old_key, otherwise);
  ConfigFile own = all.part(layers);
  const std::string type = own.get<std::string>("rope_type").value_or("default");
  if (type != "default") own.unsupported("rope_type", cat("is '", type, "'; only 'default' is supported"));
  own.allow_only(kKeys);
  return own.find("rope_theta") == nullptr ? file_.positive(old_key, otherwise) : own.positive("rope_theta");
}

void Reader::read_modernbert(BertConfig& config) {
  if (file_.find("rope_scaling") != nullptr) file_.unsupported("rope_scaling", "is given; it is not supported for models of the type modernbert");
  config.gated = true;
  config.first_norm = false;
  config.bias = flag("attention_bias");
  config.feed_forward_bias = flag("mlp_bias");
  config.norm_bias = flag("norm_bias");
  config.rotary->base = rotary_base("full_attention", "global_rope_theta", 160000);
  config.local_rotary = config.rotary;
  // In transformers 4, null means that the layers with a local window have the same base as the other layers.
  const bool is_null = file_.object().find("local_rope_theta") != nullptr && file_.find("local_rope_theta") == nullptr;
  config.local_rotary->base = rotary_base("sliding_attention", "local_rope_theta", is_null ? config.rotary->base : 10000);
  const std::int64_t window = file_.size("local_attention", 128) / 2;
  if (window == 0) file_.fail_at("local_attention", "is 1; it must be at least 2");
  const std::int64_t every = file_.size("global_attn_every_n_layers", 3);
  config.window_reach.resize(static_cast<std::size_t>(config.layers));
  for (std::int64_t i = 0; i < config.layers; ++i)
    if (i % every != 0) config.window_reach[static_cast<std::size_t>(i)] = window;
  const std::vector<std::string> types = file_.layer_types(config.layers);
  for (std::size_t i = 0; i < types.size(); ++i) config.window_reach[i] = types[i] == "sliding_attention" ? window : 0;
  if (std::ranges::count(config.window_reach, 0) == config.layers) config.local_rotary.reset();
}

BertConfig Reader::read() {
  const EncoderKeys& keys = family_.keys;
  require_supported(family_.positions == EncoderPositions::by_type ? "rotary" : "");
  BertConfig config;
  config.family = family_.model_type;
  config.vocabulary = file_.size("vocab_size");
  config.positions = file_.size(keys.positions);
  config.segments = keys.segments.empty() ? 0 : file_.size(keys.segments);
  config.width = file_.size(keys.width);
  config.layers = file_.size(keys.layers, 0, kMostLayers);
  config.heads = file_.size(keys.heads);
  const EncoderAliases& aliases = family_.aliases;
  for (const auto& [key, alias] : {std::pair(keys.width, aliases.width), std::pair(keys.layers, aliases.layers), std::pair(keys.heads, aliases.heads)})
    if (!alias.empty()) file_.require_same(key, alias);
  config.hidden_width = file_.size(keys.hidden_width);
  config.activation = keys.activation.empty() ? nn::Activation::gelu : file_.activation(keys.activation, family_.activation);
  config.epsilon = keys.epsilon.empty() ? family_.epsilon : file_.positive(keys.epsilon, family_.epsilon);
  if (config.width % config.heads != 0)
    file_.fail_at(keys.heads, cat("is ", config.heads, "; it must divide ", keys.width, " = ", config.width));
  config.norm_position = family_.norm_position;
  if (!keys.embedding_width.empty()) config.embedding_width = file_.size(keys.embedding_width, family_.embedding_width);
  if (config.embedding_width == config.width && !family_.grouped_layers) config.embedding_width = 0;  // ELECTRA projects the embeddings only if their width is not that of the layers
  read_positions(config);
  if (!family_.tensors.relative_bias.empty()) {
    // transformers uses 32 buckets whatever the key says.
    constexpr std::string_view kKey = "relative_attention_num_buckets";
    config.relative_buckets = file_.size(kKey, 32);
    if (config.relative_buckets != 32) file_.unsupported(kKey, cat("is ", config.relative_buckets, "; only 32 is supported"));
  }
  if (family_.grouped_layers) read_groups(config);
  if (family_.token_dropout) read_esm(config);
  if (family_.modernbert) read_modernbert(config);
  file_.require_without_effect(family_.model_type, kEffects);
  return config;
}

}  // namespace

std::vector<std::string_view> encoder_families() { return model_types(encoder_family_rows()); }

std::map<std::string, std::string> attention_names(std::string_view family) {
  return projection_names(find_encoder_family("attention_names", family).tensors);
}

BertConfig read_bert_config(const std::filesystem::path& path) { return Reader(path).read(); }

}  // namespace polyhead::models
