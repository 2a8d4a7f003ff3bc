#include <algorithm>
#include <string>

#include "core/join.h"
#include "core/text.h"
#include "models/activation_names.h"
#include "models/encoder_families.h"
#include "models/json_file.h"
#include "models/projection_names.h"
#include "polyhead/models/bert.h"

namespace polyhead::models {
namespace {

// With this limit, products of two sizes do not overflow 64 bits.
constexpr std::int64_t kMostOfAnExtent = std::int64_t{1} << 31;

// config.json of one family.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path)
      : file_(path), family_(find_encoder_family(file_.name(), file_.get<std::string>(file_.root(), "model_type").value_or("bert"))) {}

  BertConfig read();

 private:
  // Absent: `otherwise`, or an Error if that is 0.
  std::int64_t size(std::string_view key, std::int64_t otherwise = 0, std::int64_t most = kMostOfAnExtent) const {
    const auto given = file_.get<std::int64_t>(file_.root(), key);
    if (!given && otherwise != 0) return otherwise;
    file_.require(file_.root(), key);
    if (*given < 1 || *given > most) file_.fail_at("", key, cat("is ", *given, "; it must be in [1, ", most, "]"));
    return *given;
  }
  double positive(std::string_view key, double otherwise) const {
    const double value = file_.get<double>(file_.root(), key).value_or(otherwise);
    if (!(value > 0) || value > 1e300) file_.fail_at("", key, cat("is ", value, "; it must be above 0", value > 0 ? " and finite" : ""));
    return value;
  }
  bool flag(std::string_view key) const { return file_.get<bool>(file_.root(), key).value_or(false); }
  [[noreturn]] void unsupported(std::string_view key, std::string_view message) const { fail(ErrorCode::unsupported, file_.name(), ": ", key, " ", message); }

  void require_supported(std::string_view positions) const;
  nn::Activation activation() const;
  std::optional<std::int64_t> token(std::string_view key, std::int64_t vocabulary) const;
  void read_positions(BertConfig& config) const;
  void read_groups(BertConfig& config) const;
  void read_esm(BertConfig& config) const;
  void read_modernbert(BertConfig& config) const;
  double rotary_base(std::string_view layers, std::string_view old_key, double otherwise) const;

  JsonFile file_;
  const EncoderFamily& family_;
};

// Error where a key asks for something that would change the results and that no family here has.
void Reader::require_supported(std::string_view positions) const {
  const auto text = file_.get<std::string>(file_.root(), "position_embedding_type");
  if (text && *text != "absolute" && *text != positions)
    unsupported("position_embedding_type", cat("is '", *text, "'; only 'absolute'", positions.empty() ? "" : cat(" and '", positions, "'"), " is supported"));
  for (const std::string_view key : {"is_decoder", "add_cross_attention"})
    if (flag(key)) unsupported(key, "is true; only encoders are supported");
  if (flag("is_folding_model")) unsupported("is_folding_model", "is true; ESMFold is not supported");
  if (const io::Json* pruned = JsonFile::find(file_.root(), "pruned_heads")) {
    const auto* heads = pruned->as<io::Json::Object>();
    if (heads == nullptr || !heads->empty()) unsupported("pruned_heads", "names heads; layers without some of their heads are not supported");
  }
  for (const std::string_view key : {"rope_scaling", "rope_parameters"})
    if (family_.positions == EncoderPositions::by_type && JsonFile::find(file_.root(), key) != nullptr) unsupported(key, "is given; models of the type esm have rope_theta alone");
}

nn::Activation Reader::activation() const {
  const std::string_view key = family_.keys.activation;
  const std::string name = key.empty() ? "gelu" : file_.get<std::string>(file_.root(), key).value_or(std::string(family_.activation));
  const auto* const found = std::ranges::find(kActivationNames, name, &ActivationName::name);
  if (found == std::end(kActivationNames)) unsupported(key, cat("is '", name, "'; ", join(kActivationNames, &ActivationName::name), " are known"));
  return found->activation;
}

std::optional<std::int64_t> Reader::token(std::string_view key, std::int64_t vocabulary) const {
  const auto id = file_.get<std::int64_t>(file_.root(), key);
  if (id && (*id < 0 || *id >= vocabulary)) file_.fail_at("", key, cat("is ", *id, "; it must be in [0, ", vocabulary, "), the vocabulary"));
  return id;
}

void Reader::read_positions(BertConfig& config) const {
  EncoderPositions positions = family_.positions;
  if (positions == EncoderPositions::by_type) {
    const bool rotary = file_.get<std::string>(file_.root(), "position_embedding_type").value_or("absolute") == "rotary";
    positions = rotary ? EncoderPositions::rotary : EncoderPositions::after_padding;
  }
  if (positions == EncoderPositions::rotary) {
    if (config.width / config.heads % 2 != 0)
      file_.fail_at("", family_.keys.heads, cat("is ", config.heads, " and ", family_.keys.width, " ", config.width, "; rotary positions need heads of an even width"));
    config.rotary = nn::RotaryEmbeddingConfig{.width = config.width / config.heads};
  }
  if (positions != EncoderPositions::after_padding) return;
  constexpr std::string_view kKey = "pad_token_id";
  std::optional<std::int64_t> padding = family_.fixed_padding_token ? std::nullopt : token(kKey, config.vocabulary);
  if (!padding && family_.padding_token >= 0) padding = family_.padding_token;
  if (!padding) file_.fail_at("", kKey, "is missing; positions are counted from it");
  config.padding_token = padding;
  if (config.longest() < 1)
    file_.fail_at("", family_.keys.positions, cat("is ", config.positions, "; positions begin at the padding token + 1 = ", *padding + 1, ", so it must be above that"));
}

void Reader::read_groups(BertConfig& config) const {
  const std::int64_t steps = config.layers, groups = size("num_hidden_groups", 1, kMostLayers), inner = size("inner_group_num", 1, kMostLayers);
  if (groups > steps) file_.fail_at("", "num_hidden_groups", cat("is ", groups, "; it may be at most ", family_.keys.layers, " = ", steps));
  if (steps * inner > kMostLayers) file_.fail_at("", "inner_group_num", cat("is ", inner, " and ", family_.keys.layers, " is ", steps, "; their product may be at most ", kMostLayers));
  config.layers = steps * inner;
  config.layers_of_a_group = inner;
  for (std::int64_t i = 0; i < steps; ++i) {
    const auto group = static_cast<std::int64_t>(static_cast<double>(i) / (static_cast<double>(steps) / static_cast<double>(groups)));  // rounded as transformers does
    for (std::int64_t j = 0; j < inner; ++j) config.shared_layers.push_back(group * inner + j);
  }
}

void Reader::read_esm(BertConfig& config) const {
  config.embedding_norm = flag("emb_layer_norm_before");
  config.zero_padding = true;
  if (config.rotary) config.rotary->base = positive("rope_theta", 10000);
  if (!flag("token_dropout")) return;
  config.mask_token = token("mask_token_id", config.vocabulary);
  if (!config.mask_token) file_.fail_at("", "mask_token_id", "is missing; token_dropout is true and scales the embeddings by the number of masked tokens");
}

// Returns the base of the rotary positions, from rope_parameters for each kind of layers (transformers 5) or the older keys (transformers 4).
double Reader::rotary_base(std::string_view layers, std::string_view old_key, double otherwise) const {
  const io::Json* all = JsonFile::find(file_.root(), "rope_parameters");
  if (all == nullptr) return positive(old_key, otherwise);
  if (all->as<io::Json::Object>() == nullptr) file_.fail_at("", "rope_parameters", cat("is ", io::describe(*all), "; an object is needed"));
  constexpr std::string_view kLayers[] = {"full_attention", "sliding_attention"}, kKeys[] = {"rope_type", "rope_theta"};
  file_.allow_only(*all, kLayers, "rope_parameters");
  const io::Json* own = JsonFile::find(*all, layers);
  if (own == nullptr) return positive(old_key, otherwise);
  const std::string where = cat("rope_parameters.", layers);
  if (own->as<io::Json::Object>() == nullptr) file_.fail_at("rope_parameters", layers, cat("is ", io::describe(*own), "; an object is needed"));
  const std::string type = file_.get<std::string>(*own, "rope_type", where).value_or("default");
  if (type != "default") unsupported(cat(where, ".rope_type"), cat("is '", type, "'; only 'default' is supported"));
  file_.allow_only(*own, kKeys, where);
  const auto base = file_.get<double>(*own, "rope_theta", where);
  if (!base) return positive(old_key, otherwise);
  if (!(*base > 0) || *base > 1e300) file_.fail_at(where, "rope_theta", cat("is ", *base, "; it must be above 0 and finite"));
  return *base;
}

void Reader::read_modernbert(BertConfig& config) const {
  if (JsonFile::find(file_.root(), "rope_scaling") != nullptr) unsupported("rope_scaling", "is given; it is not supported for models of the type modernbert");
  config.gated = true;
  config.first_norm = false;
  config.bias = flag("attention_bias");
  config.feed_forward_bias = flag("mlp_bias");
  config.norm_bias = flag("norm_bias");
  config.rotary->base = rotary_base("full_attention", "global_rope_theta", 160000);
  config.local_rotary = config.rotary;
  // transformers 4: null means the base of the other layers.
  const bool is_null = file_.root().find("local_rope_theta") != nullptr && JsonFile::find(file_.root(), "local_rope_theta") == nullptr;
  config.local_rotary->base = rotary_base("sliding_attention", "local_rope_theta", is_null ? config.rotary->base : 10000);
  const std::int64_t window = size("local_attention", 128) / 2;
  if (window == 0) file_.fail_at("", "local_attention", "is 1; it must be at least 2");
  const std::int64_t every = size("global_attn_every_n_layers", 3);
  config.windows.resize(static_cast<std::size_t>(config.layers));
  for (std::int64_t i = 0; i < config.layers; ++i)
    if (i % every != 0) config.windows[static_cast<std::size_t>(i)] = window;
  if (const io::Json* types = JsonFile::find(file_.root(), "layer_types")) {
    const auto* list = types->as<io::Json::Array>();
    if (list == nullptr || std::ssize(*list) != config.layers) file_.fail_at("", "layer_types", cat("is ", io::describe(*types), "; a list of ", config.layers, " words is needed, one for each layer"));
    for (std::size_t i = 0; i < list->size(); ++i) {
      const auto* word = (*list)[i].as<std::string>();
      if (word == nullptr || (*word != "full_attention" && *word != "sliding_attention"))
        unsupported("layer_types", cat("has ", io::describe((*list)[i]), "; full_attention and sliding_attention are known"));
      config.windows[i] = *word == "sliding_attention" ? window : 0;
    }
  }
  if (std::ranges::count(config.windows, 0) == config.layers) config.local_rotary.reset();
}

BertConfig Reader::read() {
  const EncoderKeys& keys = family_.keys;
  require_supported(family_.positions == EncoderPositions::by_type ? "rotary" : "");
  BertConfig config;
  config.family = family_.model_type;
  config.vocabulary = size("vocab_size");
  config.positions = size(keys.positions);
  config.segments = keys.segments.empty() ? 0 : size(keys.segments);
  config.width = size(keys.width);
  config.layers = size(keys.layers, 0, kMostLayers);
  config.heads = size(keys.heads);
  config.hidden_width = size(keys.hidden_width);
  config.activation = activation();
  config.epsilon = keys.epsilon.empty() ? family_.epsilon : positive(keys.epsilon, family_.epsilon);
  if (config.width % config.heads != 0)
    fail(ErrorCode::format, file_.name(), ": ", keys.heads, " is ", config.heads, "; it must divide ", keys.width, " = ", config.width);
  config.norm_position = family_.norm_position;
  if (!keys.embedding_width.empty()) config.embedding_width = size(keys.embedding_width, family_.embedding_width);
  if (config.embedding_width == config.width && !family_.grouped_layers) config.embedding_width = 0;  // ELECTRA projects to another width only
  read_positions(config);
  if (!family_.tensors.relative_bias.empty()) {
    // transformers counts 32 buckets whatever the key says.
    constexpr std::string_view kKey = "relative_attention_num_buckets";
    config.relative_buckets = size(kKey, 32);
    if (config.relative_buckets != 32) unsupported(kKey, cat("is ", config.relative_buckets, "; only 32 is supported"));
  }
  if (family_.grouped_layers) read_groups(config);
  if (family_.token_dropout) read_esm(config);
  if (family_.modernbert) read_modernbert(config);
  return config;
}

}  // namespace

std::vector<std::string_view> encoder_families() {
  std::vector<std::string_view> names;
  for (const EncoderFamily& family : encoder_family_rows()) names.push_back(family.model_type);
  return names;
}

std::map<std::string, std::string> attention_names(std::string_view family) {
  return projection_names(find_encoder_family("attention_names", family).tensors);
}

BertConfig read_bert_config(const std::filesystem::path& path) { return Reader(path).read(); }

}  // namespace polyhead::models
