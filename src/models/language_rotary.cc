#include <cmath>

#include "core/join.h"
#include "core/text.h"
#include "models/language_config_file.h"

namespace polyhead::models {
namespace {

using nn::RotaryScaling;

// The keys that a rope_type reads, beside rope_theta, rope_type, type and partial_rotary_factor.
struct RopeType {
  std::string_view name;
  RotaryScaling scaling;
  std::vector<std::string_view> keys;
};
const std::vector<RopeType>& rope_types() {
  static const std::vector<RopeType> kTypes{
      {"default", RotaryScaling::none, {}},
      {"linear", RotaryScaling::linear, {"factor"}},
      {"dynamic", RotaryScaling::none, {"factor"}},
      {"llama3", RotaryScaling::llama3, {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}},
      {"yarn", RotaryScaling::yarn, {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "original_max_position_embeddings"}},
      {"longrope", RotaryScaling::longrope, {"factor", "attention_factor", "short_factor", "long_factor", "original_max_position_embeddings"}},
      {"proportional", RotaryScaling::proportional, {"factor"}},
  };
  return kTypes;
}

// Values that are read from rope_parameters or from keys beside rope_scaling.
struct Around {
  double base = 0;
  double part = 1;
  std::optional<double> original{};  // original_max_position_embeddings; overrides the value in rope_scaling
};

// Reads one object of rope_parameters, or rope_scaling; `where` names it in messages. rope: the object; nullptr if there is none.
class RopeReader {
 public:
  RopeReader(const ConfigFile& file, const Family& family, const LanguageModelConfig& config, const io::Json* rope, std::string_view where)
      : file_(file.file()), family_(family), config_(config), rope_(rope), where_(where) {
    if (rope != nullptr && rope->as<io::Json::Object>() == nullptr) file_.fail_at("", where, cat("is ", io::describe(*rope), "; an object is needed"));
  }

  RotaryRule read(const Around& around) const {
    const RopeType& type = find_type();
    require_known_keys(type);
    RotaryRule rule;
    nn::RotaryEmbeddingConfig& e = rule.embedding;
    const double part = number("partial_rotary_factor").value_or(around.part);
    const bool proportional = type.scaling == RotaryScaling::proportional;
    if (!(part > 0 && part <= 1)) fail_at("partial_rotary_factor", cat("is ", part, "; it must lie in (0,1]"));
    if (part != 1 && !proportional && !family_.partial_rotary)
      fail(ErrorCode::unsupported, file_.name(), ": partial_rotary_factor is ", part, "; models of the type ", family_.model_type, " rotate all features of a head");
    const auto head = static_cast<double>(config_.layer.head_width);
    e.width = proportional ? config_.layer.head_width : static_cast<std::int64_t>(head * part);
    e.base = number("rope_theta").value_or(around.base);
    e.scaling = type.scaling;
    if (proportional) e.proportion = part;
    const auto positions = static_cast<double>(config_.positions);
    const auto original = [&] { return around.original ? *around.original : bounded("original_max_position_embeddings", 1).value_or(positions); };
    if (type.name == "dynamic") {
      rule.limit = config_.positions;
      rule.dynamic_factor = needed_factor();
    } else if (type.name == "llama3" || type.name == "linear") {
      e.factor = needed_factor();
    } else if (type.name == "yarn" || type.name == "longrope") {
      e.original_max_position_embeddings = original();
      const auto given = bounded("factor", type.name == "yarn" ? 1 : 0);
      e.factor = given.value_or(positions / e.original_max_position_embeddings);
      e.attention_factor = number("attention_factor");
    } else if (proportional) {
      e.factor = bounded("factor", 1).value_or(1);
    }
    if (type.name == "llama3") {
      e.original_max_position_embeddings = original();
      e.low_freq_factor = needed("low_freq_factor"), e.high_freq_factor = needed("high_freq_factor");
    }
    if (type.name == "yarn") {
      e.beta_fast = number("beta_fast").value_or(32), e.beta_slow = number("beta_slow").value_or(1);
      // transformers reads mscale and mscale_all_dim only if both differ from 0 and there is no attention_factor.
      const double mscale = number("mscale").value_or(0), all_dim = number("mscale_all_dim").value_or(0);
      if (!e.attention_factor && mscale != 0 && all_dim != 0) e.mscale = mscale, e.mscale_all_dim = all_dim;
      if (rope_ != nullptr) e.truncate = truncate();
    }
    if (type.name == "longrope") {
      if (family_.longrope_original && !around.original) file_.fail_at("", "original_max_position_embeddings", "is missing; rope_type 'longrope' needs it");
      e.factors = factors("short_factor"), rule.long_factors = factors("long_factor");
      if (e.factor < 1) e.factor = 1;  // with a factor of 1 the attention factor is 1, as in the published code for factors below 1
      // The attention factor divides by log(original).
      if (e.original_max_position_embeddings < 2)
        fail_at("original_max_position_embeddings", cat("is ", e.original_max_position_embeddings, "; rope_type 'longrope' needs at least 2"));
      rule.limit = static_cast<std::int64_t>(e.original_max_position_embeddings);
    }
    require_embedding(rule);
    return rule;
  }

 private:
  std::string kind() const {
    if (rope_ == nullptr) return "default";
    const auto word = [&](const char* key) { return file_.get<std::string>(*rope_, key, where_); };
    const std::string name = word("rope_type") ? *word("rope_type") : word("type").value_or("default");
    return family_.longrope_original && (name == "su" || name == "yarn") ? "longrope" : name;
  }

  // transformers reads null as false, and reads the key only in a rope_parameters without kinds of layers.
  bool truncate() const {
    const bool value = rope_->find("truncate") == nullptr || file_.get<bool>(*rope_, "truncate", where_).value_or(false);
    if (family_.local_rotary && !value)
      fail(ErrorCode::unsupported, file_.name(), ": ", where_, ".truncate is false or null; models of the type ", family_.model_type, " have separate positions for each kind of layer, for which transformers ignores it");
    return value;
  }

  const RopeType& find_type() const {
    const std::string name = kind();
    if (family_.local_rotary && name != "default" && JsonFile::find(*rope_, "rope_type") == nullptr)
      fail(ErrorCode::unsupported, file_.name(), ": ", where_, ".type is '", name, "' without rope_type; transformers ignores it in models of the type ", family_.model_type, "; write rope_type");
    const auto found = std::ranges::find(rope_types(), name, &RopeType::name);
    if (found == rope_types().end())
      fail(ErrorCode::unsupported, file_.name(), ": ", where_, ".rope_type is '", name, "'; ", join(rope_types(), &RopeType::name), " are known");
    return *found;
  }

  void require_known_keys(const RopeType& type) const {
    if (rope_ == nullptr) return;
    constexpr std::string_view kAlways[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
    for (const auto& [key, value] : *rope_->as<io::Json::Object>()) {
      const auto is_in = [&name = key](const auto& known) { return std::ranges::find(known, name) != std::end(known); };
      if (value.as<std::nullptr_t>() != nullptr || is_in(kAlways) || is_in(type.keys)) continue;
      // transformers 4 also wrote this key for types that do not read it.
      if (key == "original_max_position_embeddings") continue;
      fail(ErrorCode::unsupported, file_.name(), ": ", where_, " has ", io::quote(key), ", which rope_type '", type.name, "' does not read; it reads ",
           type.keys.empty() ? "no key but rope_theta and partial_rotary_factor" : join(type.keys));
    }
  }

  std::optional<double> number(std::string_view key) const { return rope_ == nullptr ? std::nullopt : file_.get<double>(*rope_, key, where_); }
  // Returns a number in [least, 2^30], so that a cast to int64 and a product with a length do not overflow.
  std::optional<double> bounded(std::string_view key, double least) const {
    const std::optional<double> value = number(key);
    constexpr std::int64_t kMost = ConfigFile::kLargestExtent;
    if (value && !(*value >= least && *value <= static_cast<double>(kMost))) fail_at(key, cat("is ", *value, "; it must be in [", least, ", ", kMost, "]"));
    return value;
  }
  double needed(std::string_view key) const {
    const std::optional<double> value = number(key);
    if (!value) fail_at(key, "is missing");
    return *value;
  }

  double needed_factor() const {
    needed("factor");
    return *bounded("factor", 1);
  }

  std::vector<double> factors(std::string_view key) const {
    const io::Json* list = rope_ == nullptr ? nullptr : JsonFile::find(*rope_, key);
    const auto* array = list == nullptr ? nullptr : list->as<io::Json::Array>();
    if (array == nullptr) fail_at(key, "is missing; a list of numbers is needed");
    std::vector<double> numbers;
    for (const io::Json& item : *array) {
      const std::optional<double> number = as_number(item);
      if (!number) fail_at(key, cat("has ", io::describe(item), "; numbers are needed"));
      numbers.push_back(*number);
    }
    return numbers;
  }

  // Checks the rules of nn::RotaryEmbedding, and adds the file's name to its messages.
  void require_embedding(const RotaryRule& rule) const {
    try {
      for (const std::int64_t length : {std::int64_t{1}, rule.limit + 1}) nn::RotaryEmbedding(rule.at(length));
    } catch (const Error& error) {
      fail(ErrorCode::format, file_.name(), ": ", where_, ": ", error.what());
    }
  }

  [[noreturn]] void fail_at(std::string_view key, std::string_view message) const { file_.fail_at(where_, key, message); }

  const JsonFile& file_;
  const Family& family_;
  const LanguageModelConfig& config_;
  const io::Json* rope_;
  std::string_view where_;
};

}  // namespace

void read_rotary(ConfigFile& file, const Family& family, LanguageModelConfig& config) {
  const io::Json *parameters = file.find("rope_parameters"), *scaling = file.find("rope_scaling");
  if (parameters != nullptr && scaling != nullptr) file.fail_at("rope_scaling", "is given beside rope_parameters; one of them is needed");
  if (family.defaults.rope_required && parameters == nullptr && scaling == nullptr)
    file.fail_at("rope_parameters", cat("is missing, and so is rope_scaling; models of the type ", family.model_type, " need one of them"));
  Around around;
  // transformers reads rope_theta and partial_rotary_factor only inside rope_parameters if the family has older names for them.
  const auto older = [&](std::string_view old_name, std::string_view key, double otherwise) {
    if (old_name.empty()) return file.positive(key, otherwise);
    const double value = file.positive(old_name, otherwise);
    if (file.positive(key, value) != value)
      file.fail_at(key, cat("is ", file.positive(key), " and ", old_name, file.find(old_name) == nullptr ? " (by default) " : " ", value, "; models of the type ", family.model_type, " need the same value in both"));
    return value;
  };
  around.base = older(family.keys.rotary_base, "rope_theta", family.defaults.rotary_base);
  around.part = older(family.keys.rotary_part, "partial_rotary_factor", family.defaults.rotary_part);
  if (family.longrope_original && file.find("original_max_position_embeddings") != nullptr)
    around.original = static_cast<double>(file.size("original_max_position_embeddings"));
  constexpr double kLocalBase = 10000;
  Around local{.base = family.local_rotary ? file.positive("rope_local_base_freq", kLocalBase) : 0};

  const bool nested = parameters != nullptr && (parameters->find("full_attention") != nullptr || parameters->find("sliding_attention") != nullptr);
  if (nested && !family.local_rotary)
    fail(ErrorCode::unsupported, file.name(), ": rope_parameters has separate positions for each kind of layer; models of the type ", family.model_type, " have the same positions in all layers");
  if (!nested) {
    config.rotary = RopeReader(file, family, config, parameters != nullptr ? parameters : scaling, parameters != nullptr ? "rope_parameters" : "rope_scaling").read(around);
    if (family.local_rotary && parameters != nullptr) file.fail_at("rope_parameters", "lacks full_attention and sliding_attention");
    if (family.local_rotary) config.local_rotary = RopeReader(file, family, config, nullptr, "rope_local_base_freq").read(local);
    return;
  }
  for (const auto& [key, value] : *parameters->as<io::Json::Object>())
    if (key != "full_attention" && key != "sliding_attention") file.fail_at("rope_parameters", cat("has ", io::quote(key), " beside full_attention and sliding_attention"));
  config.rotary = RopeReader(file, family, config, JsonFile::find(*parameters, "full_attention"), "rope_parameters.full_attention").read(around);
  config.local_rotary = RopeReader(file, family, config, JsonFile::find(*parameters, "sliding_attention"), "rope_parameters.sliding_attention").read(local);
}

nn::RotaryEmbeddingConfig RotaryRule::at(std::int64_t length) const {
  if (limit == 0 || length <= limit) return embedding;
  nn::RotaryEmbeddingConfig longer = embedding;
  if (dynamic_factor > 0) {
    longer.scaling = RotaryScaling::ntk;
    longer.factor = dynamic_factor * static_cast<double>(length) / static_cast<double>(limit) - (dynamic_factor - 1);
  } else {
    longer.factors = long_factors;
  }
  return longer;
}

bool RotaryRule::same_angles(std::int64_t length, std::int64_t longer) const {
  if (limit == 0 || longer <= limit) return true;
  return length > limit && (dynamic_factor == 0 || length == longer);
}

}  // namespace polyhead::models
