#include <cmath>
#include <string>
#include <unordered_set>
#include <utility>

#include "core/text.h"
#include "io/file_bytes.h"
#include "models/language_config_file.h"
#include "models/projection_names.h"

namespace polyhead::models {
namespace {

nn::Activation activation_of(ConfigFile& file, const Family& family) {
  const auto read = [&](std::string_view key) { return file.activation(key, family.defaults.activation); };
  const std::string_view key = family.keys.activation, second = family.keys.second_activation;
  nn::Activation activation = read(key);
  if (family.gelu_is_tanh && activation == nn::Activation::gelu) activation = nn::Activation::gelu_tanh;
  if (!second.empty() && file.find(second) != nullptr && read(second) != activation)
    file.unsupported(second, cat("is '", *file.get<std::string>(second), "' and ", key, " another function; versions of transformers differ in which key they use"));
  return activation;
}

bool has_bias(ConfigFile& file, const Family& family, HasBias rule) {
  if (rule == HasBias::by_attention_bias) return file.get<bool>("attention_bias").value_or(family.defaults.attention_bias);
  if (rule == HasBias::by_mlp_bias) return file.get<bool>("mlp_bias").value_or(false);
  return rule == HasBias::yes;
}

// Returns for each layer whether it has experts: every decoder_sparse_step-th layer does, except those of mlp_only_layers. Empty: all layers do.
std::vector<bool> layers_with_experts(ConfigFile& file, std::int64_t layers) {
  const std::int64_t step = file.size("decoder_sparse_step", 1);
  std::vector<bool> with(static_cast<std::size_t>(layers));
  for (std::int64_t i = 0; i < layers; ++i) with[static_cast<std::size_t>(i)] = (i + 1) % step == 0;
  if (const io::Json* given = file.find("mlp_only_layers")) {
    const auto* list = given->as<io::Json::Array>();
    if (list == nullptr) file.fail_at("mlp_only_layers", cat("is ", io::describe(*given), "; a list of numbers of layers is needed"));
    for (const io::Json& item : *list) {
      const auto* layer = item.as<std::uint64_t>();
      if (layer == nullptr || *layer >= with.size()) file.fail_at("mlp_only_layers", cat("has ", io::describe(item), "; layers are integers in [0, ", layers, ")"));
      with[*layer] = false;
    }
  }
  return std::ranges::find(with, false) == with.end() ? std::vector<bool>() : with;
}

void read_experts(ConfigFile& file, const Family& family, LanguageModelConfig& config) {
  const FamilyExperts& keys = family.experts;
  if (keys.count.empty()) return;
  ExpertsConfig& experts = config.experts.emplace();
  const bool second = !keys.second_count.empty() && file.find(keys.second_count) != nullptr;
  if (second && file.find(keys.count) != nullptr && file.size(keys.count) != file.size(keys.second_count))
    file.fail_at(keys.second_count, cat("is ", file.size(keys.second_count), " and ", keys.count, " is ", file.size(keys.count), "; both keys must have the same value"));
  experts.count = file.size(second ? keys.second_count : keys.count);
  experts.chosen = file.size(keys.chosen);
  if (experts.chosen > experts.count) file.fail_at(keys.chosen, cat("is ", experts.chosen, "; it may be at most ", keys.count, " = ", experts.count));
  experts.hidden_width = file.size(keys.hidden_width);
  if (!keys.shared_hidden_width.empty()) experts.shared_hidden_width = file.size(keys.shared_hidden_width);
  if (keys.normalise_key) experts.normalise = file.get<bool>("norm_topk_prob").value_or(false);
  if (keys.some_layers) experts.layers = layers_with_experts(file, config.layers);
  if (!keys.clamped) return;
  experts.bias = true;
  experts.clamped_gate = nn::ClampedGate{.slope = file.positive("swiglu_alpha", 1.702), .limit = file.positive("swiglu_limit", 7.0)};
  if (config.layer.activation != nn::Activation::silu) file.unsupported(family.keys.activation, "is not 'silu'; the experts of this family use a clamped form of silu");
}

void read_layer(ConfigFile& file, const Family& family, LanguageModelConfig& config) {
  const FamilyKeys& keys = family.keys;
  const FamilyDefaults& defaults = family.defaults;
  nn::LayerConfig& layer = config.layer;
  layer.width = file.size(keys.width);
  layer.heads = file.size(keys.heads);
  layer.kv_heads = keys.kv_heads.empty() ? layer.heads : file.size(keys.kv_heads, defaults.kv_heads_as_heads ? layer.heads : 0);
  if (layer.heads % layer.kv_heads != 0) file.fail_at(keys.kv_heads, cat("is ", layer.kv_heads, "; it must divide ", keys.heads, " = ", layer.heads));
  const std::int64_t of_heads = layer.width / layer.heads;
  const bool given = !keys.head_width.empty() && file.find(keys.head_width) != nullptr;
  if (!given && defaults.head_width_of_heads && layer.width % layer.heads != 0)
    file.fail_at(keys.heads, cat("is ", layer.heads, "; it must divide ", keys.width, " = ", layer.width));
  layer.head_width = keys.head_width.empty() ? of_heads : file.size(keys.head_width, defaults.head_width_of_heads ? of_heads : 0);
  if (layer.heads * layer.head_width > ConfigFile::kLargestExtent)
    file.fail_at(keys.heads, cat("is ", layer.heads, " with heads of ", layer.head_width, "; their product may be at most ", ConfigFile::kLargestExtent));
  layer.hidden_width = file.size(keys.hidden_width, defaults.hidden_per_width * layer.width);
  layer.activation = activation_of(file, family);
  layer.gated = !family.tensors.gate.empty();
  layer.bias = family.qkv_bias_key ? file.get<bool>("qkv_bias").value_or(true) : has_bias(file, family, family.bias);
  layer.output_bias = has_bias(file, family, family.output_bias);
  layer.feed_forward_bias = has_bias(file, family, family.feed_forward_bias);
  layer.qk_norm = !family.tensors.q_norm.empty();
  layer.norm = family.norm;
  layer.norm_position = family.norm_position;
  layer.epsilon = file.positive(keys.epsilon, defaults.epsilon);
  if (family.parallel_key && file.get<bool>("use_parallel_residual").value_or(true)) layer.part_order = nn::PartOrder::parallel;
}

void read_scores(ConfigFile& file, const Family& family, LanguageModelConfig& config) {
  if (family.gpt2_scores) {
    if (!file.get<bool>("scale_attn_weights").value_or(true)) config.attention_scale = 1;
    config.scale_by_layer = file.get<bool>("scale_attn_by_inverse_layer_idx").value_or(false);
  }
  if (!family.gemma_scores) return;
  config.attention_scale = 1 / std::sqrt(file.positive("query_pre_attn_scalar", 256.0));
  // null means no cap. For gemma2 a missing key is an Error, because its default in transformers is a cap.
  const auto cap = [&](const char* key) {
    if (file.find(key) != nullptr) return file.positive(key);
    if (family.defaults.caps_required && file.file().root().find(key) == nullptr) file.fail_at(key, "is missing; null means no cap");
    return 0.0;
  };
  config.attention_softcap = cap("attn_logit_softcapping");
  if (family.scores_uncapped && config.attention_softcap != 0)
    file.unsupported("attn_logit_softcapping", cat("is ", config.attention_softcap, ", but transformers ignores it in models of the type ", family.model_type, "; only null is supported"));
  config.logit_softcap = cap("final_logit_softcapping");
}

void read_windows(ConfigFile& file, const Family& family, LanguageModelConfig& config) {
  config.windows.assign(static_cast<std::size_t>(config.layers), 0);
  if (family.windows == Windows::none) return;
  const bool last_ones = family.windows == Windows::last_ones || family.windows == Windows::unused;
  // With use_sliding_window = false, transformers ignores sliding_window, whatever layer_types says.
  const bool used = !last_ones || file.get<bool>("use_sliding_window").value_or(false);
  if (used && family.windows == Windows::unused) file.unsupported("use_sliding_window", cat("is true; with models of the type ", family.model_type, " only false is supported"));
  const bool given = file.find("sliding_window") != nullptr;
  if (used && !family.defaults.no_window && file.file().root().find("sliding_window") == nullptr) file.fail_at("sliding_window", "is missing; null means none");
  const std::int64_t window = used && given ? file.size("sliding_window") : 0;
  const std::int64_t from = last_ones ? file.get<std::int64_t>("max_window_layers").value_or(28) : 0;
  std::int64_t pattern = 0;
  if (family.windows == Windows::all_but_every_nth) pattern = file.size("sliding_window_pattern", file.size("_sliding_window_pattern", 6));
  const std::vector<std::string> types = family.windows == Windows::all ? std::vector<std::string>() : file.layer_types(config.layers);
  if (pattern != 0 && pattern != 6 && types.empty() && file.find("sliding_window_pattern") == nullptr)
    file.unsupported("_sliding_window_pattern", cat("is ", pattern, " without sliding_window_pattern and layer_types; transformers then ignores it and uses 6"));
  for (std::int64_t i = 0; i < config.layers; ++i) {
    bool sliding = false;
    switch (family.windows) {
      case Windows::none:
      case Windows::unused: break;
      case Windows::all: sliding = given; break;
      case Windows::every_other: sliding = i % 2 == 0; break;
      case Windows::all_but_every_nth: sliding = (i + 1) % pattern != 0; break;
      case Windows::last_ones: sliding = window != 0 && i >= from; break;
    }
    if (!types.empty()) sliding = types[static_cast<std::size_t>(i)] == "sliding_attention";
    if (sliding && window == 0) file.fail_at("sliding_window", cat("is missing or unused; layer ", i, " has sliding_attention"));
    if (sliding) config.windows[static_cast<std::size_t>(i)] = window;
  }
}

}  // namespace

std::vector<std::int64_t> token_ids(const JsonFile& file, std::string_view key) {
  const io::Json* given = JsonFile::find(file.root(), key);
  if (given == nullptr) return {};
  const auto* list = given->as<io::Json::Array>();
  std::vector<std::int64_t> ids;
  const auto take = [&](const io::Json& json) {
    const auto* id = json.as<std::uint64_t>();
    if (id == nullptr || *id > std::uint64_t{1} << 31) file.fail_at("", key, cat("is ", io::describe(json), "; token ids are integers in [0, 2^31]"));
    ids.push_back(static_cast<std::int64_t>(*id));
  };
  if (list == nullptr) take(*given);
  if (list != nullptr) std::ranges::for_each(*list, take);
  return ids;
}

std::optional<JsonFile> read_generation_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "generation_config.json";
  return io::file_exists(path) ? std::optional<JsonFile>(path) : std::nullopt;
}

std::optional<std::int64_t> one_token(const JsonFile& file, std::string_view key) {
  const std::vector<std::int64_t> ids = token_ids(file, key);
  if (ids.size() > 1) fail(ErrorCode::unsupported, file.name(), ": ", key, " has ", ids.size(), " tokens; one or none is supported");
  return ids.empty() ? std::nullopt : std::optional(ids[0]);
}

namespace {

std::vector<std::int64_t> end_tokens(ConfigFile& file, const std::optional<JsonFile>& generation) {
  file.find("eos_token_id");
  const bool own = generation && JsonFile::find(generation->root(), "eos_token_id") != nullptr;
  return token_ids(own ? *generation : file.file(), "eos_token_id");
}

// Reads bad_words_ids, a list of token sequences that must not be generated. generate() obeys this for single tokens; longer sequences are added to
// rules_not_followed.
void read_bad_words(const JsonFile& file, AnswerRules& rules) {
  const io::Json* given = JsonFile::find(file.root(), "bad_words_ids");
  if (given == nullptr) return;
  const auto* list = given->as<io::Json::Array>();
  if (list == nullptr) file.fail_at("", "bad_words_ids", cat("is ", io::describe(*given), "; a list of lists of tokens is needed"));
  bool has_longer = false;
  const std::unordered_set<std::int64_t> ends(rules.end_tokens.begin(), rules.end_tokens.end());
  for (const io::Json& item : *list) {
    const auto* word = item.as<io::Json::Array>();
    const auto is_token = [](const io::Json& token) { return token.as<std::uint64_t>() != nullptr && *token.as<std::uint64_t>() <= std::uint64_t{1} << 31; };
    if (word == nullptr || word->empty() || !std::ranges::all_of(*word, is_token)) file.fail_at("", "bad_words_ids", cat("has ", io::describe(item), "; lists of tokens are needed, which are integers in [0, 2^31]"));
    has_longer = has_longer || word->size() > 1;
    // transformers still allows an end token that is in the list.
    const auto token = static_cast<std::int64_t>(*(*word)[0].as<std::uint64_t>());
    if (word->size() == 1 && !ends.contains(token)) rules.suppressed.push_back(token);
  }
  if (has_longer) rules.rules_not_followed.emplace_back("bad_words_ids of several tokens");
}

// Returns the rules, such as "num_beams = 4", with which transformers would choose other tokens and which generate() does not follow.
std::vector<std::string> rules_not_followed(const JsonFile& file) {
  // Keys of generation_config.json, each with the value that has no effect.
  constexpr std::pair<std::string_view, double> kRules[] = {{"num_beams", 1},          {"num_beam_groups", 1},        {"min_length", 0},         {"min_new_tokens", 0},
                                                            {"repetition_penalty", 1}, {"no_repeat_ngram_size", 0},   {"penalty_alpha", 0},      {"encoder_repetition_penalty", 1},
                                                            {"guidance_scale", 1},     {"encoder_no_repeat_ngram_size", 0}};
  std::vector<std::string> rules;
  for (const auto& [key, neutral] : kRules) {
    const io::Json* given = JsonFile::find(file.root(), key);
    const std::optional<double> value = given == nullptr ? std::nullopt : as_number(*given);
    if (value && std::max(*value, 0.0) != neutral) rules.push_back(cat(key, " = ", *value));  // a value below 0 has the effect of 0
  }
  // Keys that have an effect with any value but null.
  constexpr std::string_view kOthers[] = {"constraints", "dola_layers", "exponential_decay_length_penalty", "force_words_ids", "max_time", "sequence_bias", "stop_strings", "watermarking_config"};
  for (const std::string_view key : kOthers)
    if (JsonFile::find(file.root(), key) != nullptr) rules.emplace_back(key);
  return rules;
}

}  // namespace

AnswerRules answer_rules(ConfigFile& file, const std::optional<JsonFile>& generation) {
  const JsonFile& from = generation ? *generation : file.file();
  AnswerRules rules{.end_tokens = end_tokens(file, generation),
                    .forced_first = one_token(from, "forced_bos_token_id"),
                    .suppressed = token_ids(from, "suppress_tokens"),
                    .rules_not_followed = rules_not_followed(from),
                    .suppressed_first = token_ids(from, "begin_suppress_tokens")};
  if (const std::vector<std::int64_t> last = token_ids(from, "forced_eos_token_id"); last.size() > 1)
    rules.rules_not_followed.emplace_back("forced_eos_token_id of several tokens");
  else if (!last.empty())
    rules.forced_last = last[0];
  read_bad_words(from, rules);
  return rules;
}

std::map<std::string, std::string> language_attention_names(std::string_view family) { return projection_names(find_family("language_attention_names", family).tensors); }

LanguageModelConfig read_language_config(const std::filesystem::path& path, const LanguageLoadOptions& options) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const std::filesystem::path folder = is_folder ? path : path.parent_path();
  ConfigFile file(is_folder ? path / "config.json" : path);
  file.file().require(file.file().root(), "model_type");
  const Family& family = find_family(file.name(), *file.get<std::string>("model_type"));
  LanguageModelConfig config;
  config.family = family.model_type;
  config.vocabulary = file.size("vocab_size");
  config.positions = file.size(family.keys.positions);
  config.layers = file.size(family.keys.layers, 0, kMostLayers);
  read_layer(file, family, config);
  read_experts(file, family, config);
  config.sink = !family.tensors.sink.empty();
  if (family.gemma) config.norm_weight_offset = 1, config.embedding_scale = std::sqrt(static_cast<double>(config.layer.width));
  read_scores(file, family, config);
  read_windows(file, family, config);
  if (family.tensors.positions.empty()) read_rotary(file, family, config);
  config.tied_output = file.get<bool>("tie_word_embeddings").value_or(family.defaults.tied_output);
  const std::optional<JsonFile> generation = read_generation_config(folder);
  config.answer = answer_rules(file, generation);
  file.require_all_read(family.model_type, family.keys.without_effect, options.ignored_keys, kIgnoredKeysRemedy);
  return config;
}

}  // namespace polyhead::models
