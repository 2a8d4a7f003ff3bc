#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/join.h"
#include "core/lines.h"
#include "core/text.h"
#include "io/file_bytes.h"
#include "models/json_file.h"
#include "models/tokenizer/pipeline.h"
#include "models/tokenizer/read_stages.h"
#include "models/tokenizer/tokenizer_config.h"
#include "polyhead/models/tokenizer.h"

namespace polyhead::models {
namespace {

using io::Json;

std::vector<std::string> read_lines(const std::filesystem::path& path) {
  const io::FileBytes file = io::read_file(path);
  std::string_view text = file.text();
  std::vector<std::string> lines;
  while (const auto line = take_line(text)) lines.emplace_back(*line);
  return lines;
}

// Returns the text of a special token, which is a string or an object with a string "content"; `otherwise` if the file has no such key.
std::string token_name(const JsonFile& file, std::string_view key, const std::string& otherwise) {
  const Json* token = JsonFile::find(file.root(), key);
  if (token == nullptr) return otherwise;
  if (token->as<Json::Object>() != nullptr) return file.get<std::string>(*token, "content", key).value_or(otherwise);
  return file.get<std::string>(file.root(), key).value_or(otherwise);
}

bool has(const std::filesystem::path& directory, std::string_view name) { return io::file_exists(directory / name); }

struct SpecialNames {
  std::string padding = "[PAD]";
  std::string mask = "[MASK]";
};

// Refuses tokenizers whose steps differ from those of BertTokenizer.
void require_bert(const JsonFile& file) {
  const auto name = file.get<std::string>(file.root(), "tokenizer_class");
  if (!name) return;
  std::string_view kind = *name;
  if (kind.ends_with("Fast")) kind.remove_suffix(4);
  constexpr std::string_view kKinds[] = {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer", "MobileBertTokenizer", "ConvBertTokenizer"};
  if (std::ranges::find(kKinds, kind) == std::end(kKinds))
    fail(ErrorCode::unsupported, file.name(), ": tokenizer_class is '", *name, "'; vocab.txt is read for ", join(kKinds), ", with or without Fast; save other tokenizers as tokenizer.json, in Python: ", kSaveTokenizer);
}

void read_tokenizer_config(const JsonFile& file, BertTokenizerOptions& options, SpecialNames& names) {
  require_bert(file);
  options.lowercase = file.get<bool>(file.root(), "do_lower_case").value_or(true);
  options.strip_accents = file.get<bool>(file.root(), "strip_accents");
  options.isolate_cjk = file.get<bool>(file.root(), "tokenize_chinese_chars").value_or(true);
  options.unknown = token_name(file, "unk_token", options.unknown);
  options.start = token_name(file, "cls_token", options.start);
  options.separator = token_name(file, "sep_token", options.separator);
  names = {token_name(file, "pad_token", names.padding), token_name(file, "mask_token", names.mask)};
}

[[noreturn]] void refuse(std::string_view what) { fail(ErrorCode::unsupported, what, "; save as tokenizer.json, which is read, in Python: ", kSaveTokenizer); }

// Adds a token, or changes the token with this content. Ids of new tokens follow the vocabulary, as the `tokenizers` package numbers them.
void add_token(std::vector<AddedToken>& tokens, AddedToken token, const Vocabulary& vocabulary, std::string_view where) {
  const auto known = vocabulary.find(token.content);
  const auto next = vocabulary.size() + std::ranges::count_if(tokens, [&](const AddedToken& other) { return !vocabulary.find(other.content); });
  const std::int64_t id = known.value_or(next);
  if (token.id >= 0 && token.id != id) refuse(cat(where, ": the added token ", io::quote(token.content), " has id ", token.id, "; the vocabulary and the tokens before it give ", id));
  token.id = id;
  tokens.push_back(std::move(token));
}

// Returns the tokens of added_tokens_decoder in tokenizer_config.json, in the order of their ids. Without this key, returns those of added_tokens.json.
std::vector<AddedToken> read_added_tokens(const std::filesystem::path& directory, const Vocabulary& vocabulary) {
  std::map<std::int64_t, AddedToken> by_id;
  std::string where = "added_tokens.json";
  if (has(directory, "tokenizer_config.json")) {
    const JsonFile file(directory / "tokenizer_config.json");
    if (file.get<bool>(file.root(), "split_special_tokens").value_or(false)) refuse("tokenizer_config.json: split_special_tokens is true");
    if (const Json* list = JsonFile::find(file.root(), "added_tokens_decoder")) {
      where = "tokenizer_config.json: added_tokens_decoder";
      if (list->as<Json::Object>() == nullptr) file.fail_at("", "added_tokens_decoder", cat("is ", io::describe(*list), "; an object is needed"));
      for (const auto& [key, value] : *list->as<Json::Object>()) {
        std::int64_t id = 0;
        const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
        if (error != std::errc() || end != key.data() + key.size() || id < 0) file.fail_at("added_tokens_decoder", key, "is not an id");
        AddedToken token = read_added_token(file, value, cat("added_tokens_decoder.", key));
        token.id = id;
        by_id.emplace(id, std::move(token));
      }
    }
  }
  if (where == "added_tokens.json" && has(directory, "added_tokens.json")) {
    const JsonFile file(directory / "added_tokens.json");
    for (const auto& [content, value] : *file.root().as<Json::Object>()) {
      const auto id = file.get<std::int64_t>(file.root(), content);
      if (!id || *id < 0 || !by_id.emplace(*id, AddedToken{.content = content, .id = *id, .normalized = true}).second) file.fail_at("", content, "has no id of its own");
    }
  }
  std::vector<AddedToken> tokens;
  for (auto& [id, token] : by_id) add_token(tokens, std::move(token), vocabulary, where);
  return tokens;
}

// Marks a token that tokenizer_config.json names, such as its padding token, as special. Ignores a name that neither the vocabulary nor the added tokens have.
void mark_special(std::vector<AddedToken>& tokens, const std::string& name, const Vocabulary& vocabulary) {
  const auto found = std::ranges::find(tokens, name, &AddedToken::content);
  if (found != tokens.end())
    found->special = true;
  else if (const auto id = vocabulary.find(name))
    tokens.push_back({.content = name, .id = *id, .special = true});
}

// Refuses a file that names a special token if `tokens` does not have the token, or has it without a flag that the file gives it.
void require_special_tokens(const std::filesystem::path& directory, const char* name, const std::vector<AddedToken>& tokens) {
  if (!has(directory, name)) return;
  const JsonFile file(directory / name);
  constexpr std::string_view kKeys[] = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "additional_special_tokens", "extra_special_tokens"};
  const auto require_one = [&](std::string_view key, const Json& json) {
    const Json* content = json.as<Json::Object>() != nullptr ? JsonFile::find(json, "content") : &json;
    const auto* text = content == nullptr ? nullptr : content->as<std::string>();
    const auto found = text == nullptr ? tokens.end() : std::ranges::find(tokens, *text, &AddedToken::content);
    const auto lacks = [&](std::string_view flag, bool has_it) { return json.as<Json::Object>() != nullptr && !has_it && file.get<bool>(json, flag, key).value_or(false); };
    if (found == tokens.end() || lacks("lstrip", found->strip_left) || lacks("rstrip", found->strip_right) || lacks("single_word", found->single_word))
      refuse(cat(name, ": ", key, " is neither in the vocabulary nor an added token, or its flags differ there"));
  };
  for (const std::string_view key : kKeys) {
    const Json* json = JsonFile::find(file.root(), key);
    if (json == nullptr) continue;
    if (const auto* list = json->as<Json::Array>())
      for (const Json& one : *list) require_one(key, one);
    else
      require_one(key, *json);
  }
}

Tokenizer load_bert_tokenizer(const std::filesystem::path& directory) {
  std::vector<std::string> vocabulary = read_lines(directory / "vocab.txt");
  if (vocabulary.empty()) fail(ErrorCode::format, "vocab.txt is empty; it must have one piece per line");
  for (std::size_t i = 0; i < vocabulary.size(); ++i)
    if (!io::is_utf8(vocabulary[i])) fail(ErrorCode::format, "vocab.txt: line ", i + 1, " is not UTF-8");
  BertTokenizerOptions options;
  SpecialNames names;
  if (has(directory, "tokenizer_config.json")) read_tokenizer_config(JsonFile(directory / "tokenizer_config.json"), options, names);
  std::vector<VocabularyEntry> entries;
  for (const std::string& piece : vocabulary) entries.push_back({piece, std::ssize(entries)});
  const Vocabulary known(std::move(entries), "vocab.txt");
  options.added_tokens = read_added_tokens(directory, known);
  for (const std::string& name : std::set<std::string>{names.padding, options.unknown, options.start, options.separator, names.mask}) mark_special(options.added_tokens, name, known);
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) require_special_tokens(directory, name, options.added_tokens);
  return Tokenizer(std::move(vocabulary), options);
}

// Refuses tokenizers other than GPT-2's: their files have the same names, but these tokenizers put other special tokens around a text.
void require_gpt2(const std::filesystem::path& directory) {
  const auto require_name = [&](const char* name, std::string_view key, std::string_view begins) {
    if (!has(directory, name)) return false;
    const JsonFile file(directory / name);
    const auto value = file.get<std::string>(file.root(), key);
    if (value && !value->starts_with(begins))
      fail(ErrorCode::unsupported, name, ": ", key, " is '", *value, "'; vocab.json with merges.txt is read for GPT-2 alone; save as tokenizer.json, in Python: ", kSaveTokenizer);
    return value.has_value();
  };
  if (!require_name("tokenizer_config.json", "tokenizer_class", "GPT2")) require_name("config.json", "model_type", "gpt2");
}

Tokenizer load_gpt2_tokenizer(const std::filesystem::path& directory) {
  require_gpt2(directory);
  const JsonFile file(directory / "vocab.json");
  PipelineParts parts{.normalizer = {}, .pre_tokenizer = {}, .model = {}, .vocabulary = read_vocabulary(file, file.root(), ""), .post_processor = {}, .decoder = {}, .added_tokens = {}};
  BytePairs model;
  std::int64_t rank = 0, number = 0;
  for (const std::string& line : read_lines(directory / "merges.txt")) {
    ++number;
    if (!line.empty() && !line.starts_with("#version")) add_merge(model, line, rank++, parts.vocabulary, cat("merges.txt: line ", number));
  }
  parts.model = std::move(model);
  parts.decoder.emplace_back(DecodeByteLevel{});
  parts.added_tokens = read_added_tokens(directory, parts.vocabulary);
  bool prefix = false;
  if (has(directory, "tokenizer_config.json")) {
    const JsonFile config(directory / "tokenizer_config.json");
    for (const char* key : {"add_bos_token", "add_eos_token"})
      if (config.get<bool>(config.root(), key).value_or(false)) refuse(cat("tokenizer_config.json: ", key, " is true"));
    prefix = config.get<bool>(config.root(), "add_prefix_space").value_or(false);
    for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"}) mark_special(parts.added_tokens, token_name(config, key, "<|endoftext|>"), parts.vocabulary);
  } else {
    mark_special(parts.added_tokens, "<|endoftext|>", parts.vocabulary);
  }
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) require_special_tokens(directory, name, parts.added_tokens);
  parts.pre_tokenizer.emplace_back(ByteLevelWords{.add_prefix_space = prefix, .pattern = {gpt2_pattern()}});
  return Tokenizer(std::make_shared<const Tokenizer::Parts>(std::move(parts)));
}

[[noreturn]] void fail_without_tokenizer(const std::filesystem::path& directory) {
  for (const std::string& name : io::files_in(directory))
    if (name.ends_with(".model") || name.ends_with(".spm"))
      fail(ErrorCode::unsupported, (directory / name).string(), " is a model of sentencepiece, which is not read; this writes tokenizer.json beside it, in Python: ", kSaveTokenizer);
  fail(ErrorCode::io, directory.string(), " has no tokenizer: tokenizer.json, vocab.txt, or vocab.json and merges.txt");
}

}  // namespace

Tokenizer load_tokenizer(const std::filesystem::path& directory) {
  if (has(directory, "tokenizer.json")) {
    PipelineParts parts = read_tokenizer_json(JsonFile(directory / "tokenizer.json"));
    apply_tokenizer_config(directory, parts);
    return Tokenizer(std::make_shared<const Tokenizer::Parts>(std::move(parts)));
  }
  if (has(directory, "vocab.txt")) return load_bert_tokenizer(directory);
  if (has(directory, "vocab.json") && has(directory, "merges.txt")) return load_gpt2_tokenizer(directory);
  fail_without_tokenizer(directory);
}

}  // namespace polyhead::models
