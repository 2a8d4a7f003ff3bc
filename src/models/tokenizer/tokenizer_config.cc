#include "models/tokenizer/tokenizer_config.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>

#include "core/text.h"
#include "io/file_bytes.h"
#include "models/json_file.h"

namespace polyhead::models {
namespace {

using io::Json;

// How a tokenizer class of transformers 5 uses the keys do_lower_case, strip_accents and tokenize_chinese_chars. `bert`: it replaces the normaliser of
// tokenizer.json by a BertNormalizer with these keys. `lowercase`: it puts Lowercase into its normaliser if do_lower_case is true. Such a class may also have
// keep_accents; if that is false, it puts StripAccents there too.
enum class Letters : std::uint8_t { kept, bert, lowercase };
// How a class uses add_prefix_space. `byte_level`: it replaces the pre-tokeniser by ByteLevel. `byte_level_in_list`: its ByteLevel follows other steps.
// `metaspace`: it puts the mark of a space before a text.
enum class Prefix : std::uint8_t { ignored, byte_level, byte_level_in_list, metaspace };

// The tokens that a class puts before and after a text, whatever tokenizer.json says: the keys that name them, and their defaults if the keys are missing.
// Without keys, the post-processor of tokenizer.json is used.
struct Ends {
  std::string_view first_key, first, last_key, last;
};
constexpr Ends kBertEnds{.first_key = "cls_token", .first = "[CLS]", .last_key = "sep_token", .last = "[SEP]"};
constexpr Ends kFunnelEnds{.first_key = "cls_token", .first = "<cls>", .last_key = "sep_token", .last = "<sep>"};
constexpr Ends kRobertaEnds{.first_key = "cls_token", .first = "<s>", .last_key = "sep_token", .last = "</s>"};
constexpr Ends kXlmRobertaEnds{.first_key = "bos_token", .first = "<s>", .last_key = "eos_token", .last = "</s>"};

struct TokenizerClass {
  std::string_view name;  // name of the class without "Tokenizer" and "Fast"
  Letters letters = Letters::kept;
  Prefix prefix = Prefix::ignored;
  bool prefix_default = false;  // add_prefix_space if the key is missing
  Ends ends{};
};

// Classes that are not listed, such as TokenizersBackend and PreTrainedTokenizerFast, read none of these keys.
constexpr TokenizerClass kTokenizerClasses[] = {
    {.name = "Albert", .letters = Letters::lowercase, .prefix = Prefix::metaspace, .prefix_default = true},
    {.name = "Bart", .prefix = Prefix::byte_level, .ends = kRobertaEnds},
    {.name = "Barthez", .prefix = Prefix::metaspace, .prefix_default = true},
    {.name = "Bert", .letters = Letters::bert, .ends = kBertEnds},
    {.name = "BigBird", .prefix = Prefix::metaspace, .prefix_default = true, .ends = kBertEnds},
    {.name = "Blenderbot", .prefix = Prefix::byte_level, .prefix_default = true},
    {.name = "Camembert", .prefix = Prefix::metaspace, .prefix_default = true, .ends = kXlmRobertaEnds},
    {.name = "CodeGen", .prefix = Prefix::byte_level},
    {.name = "CodeLlama", .prefix = Prefix::metaspace, .prefix_default = true},
    {.name = "ConvBert", .letters = Letters::bert, .ends = kBertEnds},
    {.name = "Deberta", .prefix = Prefix::byte_level, .ends = kBertEnds},
    {.name = "DebertaV2", .letters = Letters::lowercase, .prefix = Prefix::metaspace, .prefix_default = true, .ends = kBertEnds},
    {.name = "DistilBert", .letters = Letters::bert, .ends = kBertEnds},
    {.name = "Electra", .letters = Letters::bert, .ends = kBertEnds},
    {.name = "FNet", .letters = Letters::lowercase, .prefix = Prefix::metaspace, .prefix_default = true},
    {.name = "Funnel", .letters = Letters::bert, .ends = kFunnelEnds},
    {.name = "GPT2", .prefix = Prefix::byte_level},
    {.name = "GPTNeoX", .prefix = Prefix::byte_level},
    {.name = "LED", .prefix = Prefix::byte_level, .ends = kRobertaEnds},
    {.name = "Llama", .prefix = Prefix::metaspace, .prefix_default = true},
    {.name = "Longformer", .prefix = Prefix::byte_level, .ends = kRobertaEnds},
    {.name = "MPNet", .letters = Letters::bert, .ends = kRobertaEnds},
    {.name = "MobileBert", .letters = Letters::bert, .ends = kBertEnds},
    {.name = "Mvp", .prefix = Prefix::byte_level, .ends = kRobertaEnds},
    {.name = "Qwen2", .prefix = Prefix::byte_level_in_list},
    {.name = "RemBert", .letters = Letters::lowercase, .prefix = Prefix::metaspace, .prefix_default = true, .ends = kBertEnds},
    {.name = "Roberta", .prefix = Prefix::byte_level, .ends = kRobertaEnds},
    {.name = "Whisper", .prefix = Prefix::byte_level},
    {.name = "XGLM", .prefix = Prefix::metaspace, .prefix_default = true},
    {.name = "XLMRoberta", .prefix = Prefix::metaspace, .prefix_default = true, .ends = kXlmRobertaEnds},
    {.name = "XLNet", .letters = Letters::lowercase},
};

// The class that transformers chooses by the model_type of config.json if no file names one. `always`: transformers chooses it even if a file names another
// class.
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

// Returns the class that transformers' AutoTokenizer makes. Returns nullptr if this class reads none of the keys, or if no file says which class it is.
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

// Applies tokenizer_config.json to what tokenizer.json holds; a missing key has the default of the class. Two things that a class makes are not compared: the
// pre-tokeniser of GPT2Tokenizer where tokenizer.json has steps before ByteLevel, and the templates of XGLMTokenizer and XLNetTokenizer.
class Overrides {
 public:
  Overrides(const std::optional<JsonFile>& file, const std::optional<JsonFile>& map, const TokenizerClass& kind, PipelineParts& parts) : file_(file), map_(map), kind_(kind), parts_(parts) {}

  void apply() {
    if (kind_.letters == Letters::bert) set_bert_letters();
    if (kind_.letters == Letters::lowercase) require_letters();
    if (kind_.prefix != Prefix::ignored) set_prefix();
    if (!kind_.ends.first_key.empty()) require_template();
  }

 private:
  std::optional<bool> flag(std::string_view key) const { return file_ ? file_->get<bool>(file_->root(), key) : std::nullopt; }

  [[noreturn]] void refuse(std::string_view key, std::string_view value, std::string_view otherwise, std::string_view name = "tokenizer_config.json") const {
    fail(ErrorCode::unsupported, name, ": ", key, " is ", value, ", and tokenizer.json ", otherwise, "; transformers' ", kind_.name, "Tokenizer would follow ", name,
         ". Make both files agree, in Python: ", kSaveTokenizer);
  }

  // Formats the value of a switch for a message.
  static std::string value_of(std::optional<bool> given, bool otherwise) {
    const char* const name = given.value_or(otherwise) ? "true" : "false";
    return given ? name : cat("missing, which means ", name);
  }

  void set_bert_letters() {
    const bool lowercase = flag("do_lower_case").value_or(true);
    auto* const step = parts_.normalizer.size() == 1 ? std::get_if<BertNormalizer>(&parts_.normalizer[0]) : nullptr;
    if (step == nullptr) {
      for (const std::string_view key : {"do_lower_case", "strip_accents", "tokenize_chinese_chars"})
        if (const auto given = flag(key)) refuse(key, *given ? "true" : "false", "has another normalizer than BertNormalizer");
      // With a model other than WordPiece, transformers makes no tokenizer, or one that differs in more than the normaliser.
      if (std::holds_alternative<WordPiece>(parts_.model)) refuse("do_lower_case", value_of({}, true), "has another normalizer than BertNormalizer");
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
      if (given.value_or(kind_.prefix_default) != prepends) refuse(kKey, value_of(given, kind_.prefix_default), prepends ? "puts a space before a text" : "puts no space before a text");
      if (kind_.name == "Llama" && prepends) set_mark_of_llama();
      return;
    }
    if (kind_.prefix == Prefix::byte_level && bytes != nullptr && parts_.pre_tokenizer.size() == 1) {
      bytes->add_prefix_space = given.value_or(kind_.prefix_default);
      TrimSpans* const trim = !kind_.ends.first_key.empty() ? find_step<TrimSpans>(parts_.post_processor) : nullptr;
      if (trim != nullptr) trim->add_prefix_space = bytes->add_prefix_space;
    } else if (const bool wanted = given.value_or(kind_.prefix_default); wanted != (bytes != nullptr && bytes->add_prefix_space)) {
      refuse(kKey, value_of(given, wanted), wanted ? "puts no space before a text" : "puts a space before a text");
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
    const bool default_holds = kind_.letters != Letters::bert || std::holds_alternative<WordPiece>(parts_.model);  // see set_bert_letters()
    const auto require_end = [&](std::string_view key, std::string_view otherwise, const TemplatePart* part) {
      const std::optional<std::string> of_map = token_content(map_, key), name = of_map ? of_map : token_content(file_, key);
      const std::string_view piece = part == nullptr || part->special.empty() ? std::string_view() : std::string_view(part->special[0].second);
      if (name.value_or(std::string(otherwise)) == piece || (!name && !default_holds)) return;
      refuse(key, name ? io::quote(*name) : cat("missing, which means ", io::quote(otherwise)), piece.empty() ? "puts no token there" : cat("puts ", io::quote(piece), " there"),
             of_map ? "special_tokens_map.json" : "tokenizer_config.json");
    };
    const bool has_parts = given != nullptr && !given->single.empty();
    require_end(kind_.ends.first_key, kind_.ends.first, has_parts ? &given->single.front() : nullptr);
    require_end(kind_.ends.last_key, kind_.ends.last, has_parts ? &given->single.back() : nullptr);
  }

  // Returns the text of a special token, which is a string or an object with a string "content"; nullopt if the file has no such key.
  static std::optional<std::string> token_content(const std::optional<JsonFile>& file, std::string_view key) {
    const Json* token = file ? JsonFile::find(file->root(), key) : nullptr;
    if (token == nullptr) return std::nullopt;
    return token->as<Json::Object>() != nullptr ? file->get<std::string>(*token, "content", key) : file->get<std::string>(file->root(), key);
  }

  const std::optional<JsonFile>& file_;
  const std::optional<JsonFile>& map_;  // special_tokens_map.json, if transformers reads it
  const TokenizerClass& kind_;
  PipelineParts& parts_;
};

// Adds the tokens that the files name, as transformers does. transformers gives a name that is in no vocabulary a new id, for which the model need not have a
// row: polyhead refuses texts with such a name (PipelineParts::missing_tokens).
class NamedTokens {
 public:
  explicit NamedTokens(PipelineParts& parts) : parts_(parts), missing_(parts.missing_tokens.begin(), parts.missing_tokens.end()) {
    for (std::size_t i = 0; i < parts.added_tokens.size(); ++i) added_.emplace(parts.added_tokens[i].content, i);
  }

  // json: the name, or an object with "content" and flags. named: the token is special whatever its flags say.
  void add(const JsonFile& file, const Json& json, bool named) {
    if (std::optional<AddedToken> token = token_of(file, json, named)) add(std::move(*token));
  }

  void add(AddedToken token) {
    if (token.content.empty()) return;
    if (AddedToken* const found = find(token.content)) {
      found->special = found->special || token.special;
    } else if (const auto id = parts_.vocabulary.find(token.content)) {
      token.id = *id;
      added_.emplace(token.content, parts_.added_tokens.size());
      parts_.added_tokens.push_back(std::move(token));
    } else if (missing_.insert(token.content).second) {
      parts_.missing_tokens.push_back(std::move(token.content));
    }
  }

  // Error if tokenizer.json has the token with other flags.
  void require_same_flags(const JsonFile& file, const Json& json, const TokenizerClass& kind) {
    const std::optional<AddedToken> token = token_of(file, json, false);
    const AddedToken* const found = token ? find(token->content) : nullptr;
    if (found == nullptr) return;
    const auto require_flag = [&](std::string_view key, bool AddedToken::* flag) {
      if ((*token).*flag != found->*flag)
        fail(ErrorCode::unsupported, file.name(), ": added_tokens_decoder: ", key, " of ", io::quote(token->content), " is ", (*token).*flag ? "true" : "false", ", and tokenizer.json has ",
             found->*flag ? "true" : "false", "; transformers' ", kind.name, "Tokenizer would follow ", file.name(), ". Make both files agree, in Python: ", kSaveTokenizer);
    };
    require_flag("lstrip", &AddedToken::strip_left);
    require_flag("rstrip", &AddedToken::strip_right);
    require_flag("single_word", &AddedToken::single_word);
    require_flag("normalized", &AddedToken::normalized);
  }

  // Adds the special tokens of a file: members such as pad_token or image_token, and lists or objects of more special tokens. Skips the members whose
  // key `instead` has too.
  void add_special(const JsonFile& file, const std::optional<JsonFile>& instead) {
    std::unordered_set<std::string_view> replaced;
    if (instead)
      for (const auto& [key, json] : *instead->root().as<Json::Object>())
        if (json.as<std::nullptr_t>() == nullptr) replaced.insert(key);
    for (const auto& [key, json] : *file.root().as<Json::Object>()) {
      if (replaced.contains(key)) continue;
      if (key.ends_with("_token")) {
        add(file, json, true);
      } else if (key == "additional_special_tokens" || key == "extra_special_tokens") {
        if (const auto* list = json.as<Json::Array>())
          for (const Json& one : *list) add_listed(file, one);
        else if (const auto* members = json.as<Json::Object>())
          for (const auto& [name, one] : *members) add(file, one, true);
      }
    }
  }

 private:
  // Adds a token of a list of special tokens. transformers reads its flags before it makes the token special, so a missing `normalized` is true.
  void add_listed(const JsonFile& file, const Json& json) {
    std::optional<AddedToken> token = token_of(file, json, json.as<std::string>() != nullptr);
    if (!token) return;
    token->special = true;
    add(std::move(*token));
  }

  static std::optional<AddedToken> token_of(const JsonFile& file, const Json& json, bool named) {
    if (const auto* name = json.as<std::string>()) return AddedToken{.content = *name, .special = named};
    const Json* content = json.as<Json::Object>() != nullptr ? JsonFile::find(json, "content") : nullptr;
    if (content == nullptr || content->as<std::string>() == nullptr) return std::nullopt;
    return read_added_token(file, json, *content->as<std::string>(), named);
  }

  AddedToken* find(const std::string& content) {
    const auto found = added_.find(content);
    return found == added_.end() ? nullptr : &parts_.added_tokens[found->second];
  }

  PipelineParts& parts_;
  std::unordered_map<std::string, std::size_t> added_;  // indices of parts_.added_tokens
  std::unordered_set<std::string> missing_;             // parts_.missing_tokens
};

// `map`: special_tokens_map.json, if transformers reads it. `kind`: nullptr if the class is not in the table.
void add_named_tokens(const std::filesystem::path& folder, const std::optional<JsonFile>& file, const std::optional<JsonFile>& map, const TokenizerClass* kind, PipelineParts& parts) {
  NamedTokens tokens(parts);
  const Json* decoder = file ? JsonFile::find(file->root(), "added_tokens_decoder") : nullptr;
  const auto* listed = decoder == nullptr ? nullptr : decoder->as<Json::Object>();
  if (listed != nullptr && kind != nullptr)
    for (const auto& [id, json] : *listed) tokens.require_same_flags(*file, json, *kind);
  if (file) tokens.add_special(*file, map);
  if (map) tokens.add_special(*map, {});
  if (listed != nullptr)
    for (const auto& [id, json] : *listed) tokens.add(*file, json, false);
  if (decoder != nullptr) return;
  if (const std::optional<JsonFile> added = file_of(folder, "added_tokens.json"))
    for (const auto& [content, id] : *added->root().as<Json::Object>()) tokens.add({.content = content, .normalized = true});
}

}  // namespace

AddedToken read_added_token(const JsonFile& file, const Json& json, std::string_view where, bool named) {
  const auto flag = [&](std::string_view key) { return file.get<bool>(json, key, where); };
  const bool special = named || flag("special").value_or(false);
  file.require(json, "content", where);
  return {.content = *file.get<std::string>(json, "content", where),
          .id = -1,
          .single_word = flag("single_word").value_or(false),
          .strip_left = flag("lstrip").value_or(false),
          .strip_right = flag("rstrip").value_or(false),
          .normalized = flag("normalized").value_or(!special),
          .special = special};
}

void apply_tokenizer_config(const std::filesystem::path& folder, PipelineParts& parts) {
  const std::optional<JsonFile> file = file_of(folder, "tokenizer_config.json");
  if (file && file->get<bool>(file->root(), "split_special_tokens").value_or(false))
    fail(ErrorCode::unsupported, "tokenizer_config.json: split_special_tokens is true; special tokens in a text are not split");
  // if true, transformers does not read the older files of added tokens
  const bool has_decoder = file && JsonFile::find(file->root(), "added_tokens_decoder") != nullptr;
  const std::optional<JsonFile> map = has_decoder ? std::nullopt : file_of(folder, "special_tokens_map.json");
  const TokenizerClass* const kind = class_of(file, file_of(folder, "config.json"));
  add_named_tokens(folder, file, map, kind, parts);
  if (kind != nullptr) Overrides(file, map, *kind, parts).apply();
}

}  // namespace polyhead::models
