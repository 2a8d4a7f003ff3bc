#include "models/tokenizer/tokenizer_config.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string>
#include <variant>

#include "core/text.h"
#include "io/file_bytes.h"
#include "models/json_file.h"

namespace polyhead::models {
namespace {

using io::Json;

// What a class of transformers 5 makes of the keys do_lower_case, strip_accents and tokenize_chinese_chars. Classes with `bert` replace the normaliser of
// tokenizer.json by a BertNormalizer with these keys; those with `lowercase` put a step Lowercase into their normaliser, and StripAccents without keep_accents.
enum class Letters : std::uint8_t { kept, bert, lowercase };
// What it makes of add_prefix_space. Classes with `byte_level` replace the pre-tokeniser by ByteLevel, `byte_level_in_list` has other steps before it, and
// those with `metaspace` put the mark of a space before a text.
enum class Prefix : std::uint8_t { ignored, byte_level, byte_level_in_list, metaspace };

struct TokenizerClass {
  std::string_view name;  // without Tokenizer and Fast
  Letters letters = Letters::kept;
  Prefix prefix = Prefix::ignored;
  bool prefix_default = false;
  bool own_template = false;  // puts cls_token and sep_token around a text, whatever tokenizer.json says
};

// Classes that are not listed, such as TokenizersBackend and PreTrainedTokenizerFast, read none of the keys.
constexpr TokenizerClass kTokenizerClasses[] = {{"Albert", Letters::lowercase, Prefix::metaspace},
                                       {"Bart", Letters::kept, Prefix::byte_level, false, true},
                                       {"Barthez", Letters::kept, Prefix::metaspace},
                                       {"Bert", Letters::bert, Prefix::ignored, false, true},
                                       {"BigBird", Letters::kept, Prefix::metaspace},
                                       {"Blenderbot", Letters::kept, Prefix::byte_level, true},
                                       {"Camembert", Letters::kept, Prefix::metaspace},
                                       {"CodeGen", Letters::kept, Prefix::byte_level},
                                       {"CodeLlama", Letters::kept, Prefix::metaspace},
                                       {"ConvBert", Letters::bert, Prefix::ignored, false, true},
                                       {"Deberta", Letters::kept, Prefix::byte_level, false, true},
                                       {"DebertaV2", Letters::lowercase, Prefix::metaspace},
                                       {"DistilBert", Letters::bert, Prefix::ignored, false, true},
                                       {"Electra", Letters::bert, Prefix::ignored, false, true},
                                       {"FNet", Letters::lowercase, Prefix::metaspace},
                                       {"Funnel", Letters::bert, Prefix::ignored, false, true},
                                       {"GPT2", Letters::kept, Prefix::byte_level},
                                       {"GPTNeoX", Letters::kept, Prefix::byte_level},
                                       {"LED", Letters::kept, Prefix::byte_level, false, true},
                                       {"Llama", Letters::kept, Prefix::metaspace},
                                       {"Longformer", Letters::kept, Prefix::byte_level, false, true},
                                       {"MPNet", Letters::bert, Prefix::ignored, false, true},
                                       {"MobileBert", Letters::bert, Prefix::ignored, false, true},
                                       {"Mvp", Letters::kept, Prefix::byte_level, false, true},
                                       {"Qwen2", Letters::kept, Prefix::byte_level_in_list},
                                       {"RemBert", Letters::lowercase, Prefix::metaspace},
                                       {"Roberta", Letters::kept, Prefix::byte_level, false, true},
                                       {"Whisper", Letters::kept, Prefix::byte_level},
                                       {"XGLM", Letters::kept, Prefix::metaspace},
                                       {"XLMRoberta", Letters::kept, Prefix::metaspace},
                                       {"XLNet", Letters::lowercase, Prefix::ignored}};

// The class that transformers chooses by the model_type of config.json if no file names one. `always`: it does so whatever class a file names.
struct ClassOfModel {
  std::string_view model_type, name;
  bool always = false;
};
constexpr ClassOfModel kClassesOfModels[] = {{"albert", "Albert"},         {"bart", "Bart"},           {"bert", "Bert"},       {"big_bird", "BigBird"},   {"blenderbot", "Blenderbot"}, {"camembert", "Camembert"},
                                             {"convbert", "ConvBert"},     {"deberta", "Deberta"},     {"deberta-v2", "DebertaV2"}, {"distilbert", "Bert"}, {"electra", "Electra"},      {"funnel", "Funnel"},
                                             {"gpt2", "GPT2"},             {"gpt_neox", "GPTNeoX"},    {"led", "LED"},         {"longformer", "Longformer"}, {"mobilebert", "MobileBert"}, {"mpnet", "MPNet"},
                                             {"mistral", "", true},        {"mixtral", "", true},      {"modernbert", "", true}, {"phi3", "", true},      {"qwen2", "Qwen2", true},     {"qwen2_moe", "Qwen2"},
                                             {"qwen3", "Qwen2"},           {"qwen3_moe", "Qwen2"},     {"roberta", "Roberta"}, {"roberta-prelayernorm", "Roberta"}, {"umt5", "", true},   {"whisper", "Whisper"},
                                             {"xlm-roberta", "XLMRoberta"}, {"xlm-roberta-xl", "", true}};

std::optional<JsonFile> file_of(const std::filesystem::path& folder, const char* name) { return io::file_exists(folder / name) ? std::optional<JsonFile>(folder / name) : std::nullopt; }

// Returns the class that AutoTokenizer of transformers makes; nullptr if it reads none of the keys, or no file says which class it is.
const TokenizerClass* class_of(const std::optional<JsonFile>& tokenizer, const std::optional<JsonFile>& model) {
  const auto word = [](const std::optional<JsonFile>& file, std::string_view key) { return file ? file->get<std::string>(file->root(), key) : std::nullopt; };
  const std::string model_type = word(model, "model_type").value_or("");
  const auto by_model = std::ranges::find(kClassesOfModels, model_type, &ClassOfModel::model_type);
  const bool known = by_model != std::end(kClassesOfModels);
  std::optional<std::string> given = word(tokenizer, "tokenizer_class");
  if (!given) given = word(model, "tokenizer_class");
  std::string_view name = known ? by_model->name : std::string_view();
  if (given && !(known && by_model->always)) {
    name = *given;
    if (name.ends_with("Fast")) name.remove_suffix(4);
    constexpr std::string_view kTokenizer = "Tokenizer";
    name = name.ends_with(kTokenizer) ? name.substr(0, name.size() - kTokenizer.size()) : std::string_view();
  }
  const auto found = std::ranges::find(kTokenizerClasses, name, &TokenizerClass::name);
  return found == std::end(kTokenizerClasses) ? nullptr : &*found;
}

template <class Step, class Steps>
Step* find_step(Steps& steps) {
  for (auto& step : steps)
    if (auto* found = std::get_if<Step>(&step)) return found;
  return nullptr;
}

// Applies tokenizer_config.json, or the defaults of the class if it lacks a key, to what tokenizer.json holds.
class Overrides {
 public:
  Overrides(const std::optional<JsonFile>& file, const std::optional<JsonFile>& map, const TokenizerClass& kind, PipelineParts& parts) : file_(file), map_(map), kind_(kind), parts_(parts) {}

  void apply() {
    if (kind_.letters == Letters::bert) set_bert_letters();
    if (kind_.letters == Letters::lowercase) require_letters();
    if (kind_.prefix != Prefix::ignored) set_prefix();
    if (kind_.own_template) require_template();
  }

 private:
  std::optional<bool> flag(std::string_view key) const { return file_ ? file_->get<bool>(file_->root(), key) : std::nullopt; }

  [[noreturn]] void refuse(std::string_view key, std::string_view value, std::string_view otherwise, std::string_view name = "tokenizer_config.json") const {
    fail(ErrorCode::unsupported, name, ": ", key, " is ", value, ", and tokenizer.json ", otherwise, "; transformers' ", kind_.name, "Tokenizer would follow ", name,
         ". Make both files agree, in Python: ", kSaveTokenizer);
  }

  void set_bert_letters() {
    const bool lowercase = flag("do_lower_case").value_or(true);
    auto* const step = parts_.normalizer.size() == 1 ? std::get_if<BertNormalizer>(&parts_.normalizer[0]) : nullptr;
    if (step == nullptr) {
      for (const std::string_view key : {"do_lower_case", "strip_accents", "tokenize_chinese_chars"})
        if (const auto given = flag(key)) refuse(key, *given ? "true" : "false", "has another normalizer than BertNormalizer");
      return;
    }
    *step = {.clean_text = true, .isolate_cjk = flag("tokenize_chinese_chars").value_or(true), .strip_accents = flag("strip_accents").value_or(lowercase), .lowercase = lowercase};
  }

  void require_letters() const {
    const auto require_step = [&](std::string_view key, bool given, bool wanted, bool has_step, std::string_view name) {
      if (wanted != has_step) refuse(key, given ? "true" : "false", cat(has_step ? "has" : "lacks", " the normalizer ", name));
    };
    if (const auto given = flag("do_lower_case")) require_step("do_lower_case", *given, *given, find_step<Lowercase>(parts_.normalizer) != nullptr, "Lowercase");
    if (const auto given = flag("keep_accents")) require_step("keep_accents", *given, !*given, find_step<StripAccents>(parts_.normalizer) != nullptr, "StripAccents");
  }

  void set_prefix() {
    constexpr std::string_view kKey = "add_prefix_space";
    const std::optional<bool> given = flag(kKey);
    ByteLevelWords* const bytes = find_step<ByteLevelWords>(parts_.pre_tokenizer);
    if (kind_.prefix == Prefix::metaspace) {
      if (bytes != nullptr) return;  // with ByteLevel, transformers makes a class that does not read the key
      const auto* const mark = find_step<Metaspace>(parts_.pre_tokenizer);
      const bool prepends = (mark != nullptr && mark->prepend != PrependScheme::never) || find_step<Prepend>(parts_.normalizer) != nullptr;
      if (given && *given != prepends) refuse(kKey, *given ? "true" : "false", prepends ? "puts a space before a text" : "puts no space before a text");
      if (kind_.name == "Llama" && prepends) set_mark_of_llama();
      return;
    }
    if (kind_.prefix == Prefix::byte_level && bytes != nullptr && parts_.pre_tokenizer.size() == 1) {
      bytes->add_prefix_space = given.value_or(kind_.prefix_default);
      TrimSpans* const trim = kind_.own_template ? find_step<TrimSpans>(parts_.post_processor) : nullptr;
      if (trim != nullptr) trim->add_prefix_space = bytes->add_prefix_space;
    } else if (given && *given != (bytes != nullptr && bytes->add_prefix_space)) {
      refuse(kKey, *given ? "true" : "false", *given ? "puts no space before a text" : "puts a space before a text");
    }
  }

  // LlamaTokenizer of transformers 5 puts the mark before the first word of a text, or with `legacy` after each special token too, and never before a mark.
  void set_mark_of_llama() {
    const std::vector<NormalizerStep>& steps = parts_.normalizer;
    const bool as_normalizer = steps.size() == 2 && std::holds_alternative<Prepend>(steps[0]) && std::holds_alternative<ReplaceMatches>(steps[1]) && parts_.pre_tokenizer.empty();
    const bool as_metaspace = steps.empty() && parts_.pre_tokenizer.size() == 1;
    if (!as_normalizer && !as_metaspace) return;
    parts_.normalizer.clear();
    parts_.pre_tokenizer = {Metaspace{.prepend = flag("legacy").value_or(false) ? PrependScheme::always : PrependScheme::first, .split = false}};
  }

  void require_template() const {
    const auto* const given = find_step<Template>(parts_.post_processor);
    const auto require_end = [&](std::string_view key, const TemplatePart* part) {
      const std::optional<std::string> of_map = token_content(map_, key), name = of_map ? of_map : token_content(file_, key);
      const std::string_view piece = part == nullptr || part->special.empty() ? std::string_view() : std::string_view(part->special[0].second);
      if (name && *name != piece) refuse(key, io::quote(*name), piece.empty() ? "puts no token there" : cat("puts ", io::quote(piece), " there"), of_map ? "special_tokens_map.json" : "tokenizer_config.json");
    };
    const bool has_parts = given != nullptr && !given->single.empty();
    require_end("cls_token", has_parts ? &given->single.front() : nullptr);
    require_end("sep_token", has_parts ? &given->single.back() : nullptr);
  }

  // Returns the text of a special token, which is a string or an object with a string "content"; nullopt if the file has no such key.
  static std::optional<std::string> token_content(const std::optional<JsonFile>& file, std::string_view key) {
    const Json* token = file ? JsonFile::find(file->root(), key) : nullptr;
    if (token == nullptr) return std::nullopt;
    return token->as<Json::Object>() != nullptr ? file->get<std::string>(*token, "content", key) : file->get<std::string>(file->root(), key);
  }

  const std::optional<JsonFile>& file_;
  const std::optional<JsonFile>& map_;  // special_tokens_map.json, where transformers reads it
  const TokenizerClass& kind_;
  PipelineParts& parts_;
};

// Adds the tokens that the files name, as transformers does. transformers gives a name that is in no vocabulary a new id, for which the model need not have a
// row: polyhead refuses texts with such a name (PipelineParts::missing_tokens).
class NamedTokens {
 public:
  explicit NamedTokens(PipelineParts& parts) : parts_(parts) {}

  // json: the name, or an object with "content" and flags. named: the token is special whatever its flags say.
  void add(const JsonFile& file, const Json& json, bool named) {
    const bool has_flags = json.as<Json::Object>() != nullptr;
    const Json* content = has_flags ? JsonFile::find(json, "content") : &json;
    const auto* name = content == nullptr ? nullptr : content->as<std::string>();
    if (name == nullptr) return;
    const auto flag = [&](std::string_view key) { return has_flags && file.get<bool>(json, key, *name).value_or(false); };
    add({.content = *name, .single_word = flag("single_word"), .strip_left = flag("lstrip"), .strip_right = flag("rstrip"), .normalized = flag("normalized"), .special = named || flag("special")});
  }

  void add(AddedToken token) {
    if (token.content.empty()) return;
    const auto found = std::ranges::find(parts_.added_tokens, token.content, &AddedToken::content);
    if (found != parts_.added_tokens.end()) {
      found->special = found->special || token.special;
    } else if (const auto id = parts_.vocabulary.find(token.content)) {
      token.id = *id;
      parts_.added_tokens.push_back(std::move(token));
    } else if (std::ranges::find(parts_.missing_tokens, token.content) == parts_.missing_tokens.end()) {
      parts_.missing_tokens.push_back(std::move(token.content));
    }
  }

  // Adds the special tokens of a file: members such as pad_token or image_token, and the lists or objects of further ones. `instead`: a file whose members take
  // the place of those with the same key.
  void add_special(const JsonFile& file, const std::optional<JsonFile>& instead) {
    for (const auto& [key, json] : *file.root().as<Json::Object>()) {
      if (instead && JsonFile::find(instead->root(), key) != nullptr) continue;
      if (key.ends_with("_token")) {
        add(file, json, true);
      } else if (key == "additional_special_tokens" || key == "extra_special_tokens") {
        if (const auto* list = json.as<Json::Array>())
          for (const Json& one : *list) add(file, one, true);
        else if (const auto* members = json.as<Json::Object>())
          for (const auto& [name, one] : *members) add(file, one, true);
      }
    }
  }

 private:
  PipelineParts& parts_;
};

// `map`: special_tokens_map.json, where transformers reads it.
void add_named_tokens(const std::filesystem::path& folder, const std::optional<JsonFile>& file, const std::optional<JsonFile>& map, PipelineParts& parts) {
  NamedTokens tokens(parts);
  if (file) tokens.add_special(*file, map);
  if (map) tokens.add_special(*map, {});
  const Json* decoder = file ? JsonFile::find(file->root(), "added_tokens_decoder") : nullptr;
  if (decoder != nullptr && decoder->as<Json::Object>() != nullptr)
    for (const auto& [id, json] : *decoder->as<Json::Object>()) tokens.add(*file, json, false);
  if (decoder != nullptr) return;
  if (const std::optional<JsonFile> added = file_of(folder, "added_tokens.json"))
    for (const auto& [content, id] : *added->root().as<Json::Object>()) tokens.add({.content = content, .normalized = true});
}

}  // namespace

void apply_tokenizer_config(const std::filesystem::path& folder, PipelineParts& parts) {
  const std::optional<JsonFile> file = file_of(folder, "tokenizer_config.json");
  if (file && file->get<bool>(file->root(), "split_special_tokens").value_or(false))
    fail(ErrorCode::unsupported, "tokenizer_config.json: split_special_tokens is true; special tokens in a text are not split");
  const bool has_decoder = file && JsonFile::find(file->root(), "added_tokens_decoder") != nullptr;  // then transformers does not read older files of added tokens
  const std::optional<JsonFile> map = has_decoder ? std::nullopt : file_of(folder, "special_tokens_map.json");
  add_named_tokens(folder, file, map, parts);
  if (const TokenizerClass* kind = class_of(file, file_of(folder, "config.json"))) Overrides(file, map, *kind, parts).apply();
}

}  // namespace polyhead::models
