#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/text.h"
#include "io/file_bytes.h"
#include "models/json_file.h"
#include "polyhead/models/tokenizer.h"

namespace polyhead::models {
namespace {

using io::Json;

std::vector<std::string> read_vocabulary(const std::filesystem::path& path) {
  const io::FileBytes file = io::read_file(path);
  const std::string_view content = file.text();
  std::vector<std::string> pieces;
  for (std::size_t first = 0; first < content.size();) {
    // Only \n and \r\n end a line, and spaces are kept: published vocabularies have U+2028 and U+3000 as pieces.
    std::size_t last = content.find('\n', first);
    if (last == std::string::npos) last = content.size();
    std::size_t end = last;
    if (end > first && content[end - 1] == '\r') --end;
    pieces.emplace_back(content.substr(first, end - first));
    first = last + 1;
  }
  if (pieces.empty()) fail(ErrorCode::format, path.filename().string(), ": is empty; it holds one piece per line");
  return pieces;
}

void require_kind(const JsonFile& file, const Json& object, std::string_view where, std::string_view wanted) {
  const auto type = file.get<std::string>(object, "type", where);
  if (type != wanted)
    fail(ErrorCode::unsupported, file.name(), ": ", where, ".type is '", type.value_or("missing"), "'; only '", wanted, "' can be read");
}

const Json& require_object(const JsonFile& file, std::string_view key) {
  const Json& object = file.require(file.root(), key);
  if (object.as<Json::Object>() == nullptr) file.fail_at("", key, "is not an object");
  return object;
}

void read_normalizer(const JsonFile& file, TokenizerOptions& options) {
  if (JsonFile::find(file.root(), "normalizer") == nullptr) {
    options.clean_text = options.isolate_cjk = options.lowercase = false;
    options.strip_accents = false;
    return;
  }
  const Json& normalizer = require_object(file, "normalizer");
  require_kind(file, normalizer, "normalizer", "BertNormalizer");
  options.clean_text = file.get<bool>(normalizer, "clean_text", "normalizer").value_or(true);
  options.isolate_cjk = file.get<bool>(normalizer, "handle_chinese_chars", "normalizer").value_or(true);
  options.lowercase = file.get<bool>(normalizer, "lowercase", "normalizer").value_or(true);
  options.strip_accents = file.get<bool>(normalizer, "strip_accents", "normalizer");
}

void read_added_tokens(const JsonFile& file, TokenizerOptions& options) {
  const Json* list = JsonFile::find(file.root(), "added_tokens");
  if (list == nullptr) return;
  if (list->as<Json::Array>() == nullptr) file.fail_at("", "added_tokens", "is not a list");
  for (const Json& entry : *list->as<Json::Array>()) {
    if (entry.as<Json::Object>() == nullptr) file.fail_at("", "added_tokens", "holds something that is not an object");
    AddedToken token;
    const auto content = file.get<std::string>(entry, "content", "added_tokens");
    const auto id = file.get<std::int64_t>(entry, "id", "added_tokens");
    if (!content) file.fail_at("added_tokens", "content", "is missing");
    if (!id || *id < 0) file.fail_at("added_tokens", "id", id ? "is negative" : "is missing");
    token.content = *content;
    token.id = *id;
    token.single_word = file.get<bool>(entry, "single_word", "added_tokens").value_or(false);
    token.strip_left = file.get<bool>(entry, "lstrip", "added_tokens").value_or(false);
    token.strip_right = file.get<bool>(entry, "rstrip", "added_tokens").value_or(false);
    token.normalized = file.get<bool>(entry, "normalized", "added_tokens").value_or(false);
    options.added_tokens.push_back(std::move(token));
  }
}

// An entry of a TemplateProcessing: {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, or "Sequence" with the id "A" or "B".
struct TemplateEntry {
  std::string kind, id;
  std::int64_t segment = 0;
  friend bool operator==(const TemplateEntry&, const TemplateEntry&) = default;
};

// Reads the start and separator tokens. BertProcessing names them; TemplateProcessing must be BERT's template, which contains them.
void read_post_processor(const JsonFile& file, TokenizerOptions& options) {
  constexpr std::string_view kWhere = "post_processor";
  const Json& processor = require_object(file, kWhere);
  const auto type = file.get<std::string>(processor, "type", kWhere);
  const auto list = [&](std::string_view key) -> const Json::Array& {
    const auto* array = file.require(processor, key, kWhere).as<Json::Array>();
    if (array == nullptr || array->empty()) file.fail_at(kWhere, key, "is not a list of tokens");
    return *array;
  };
  if (type == "BertProcessing") {
    const auto name = [&](std::string_view key) {
      const auto* text = list(key).front().as<std::string>();
      if (text == nullptr) file.fail_at(kWhere, key, "does not begin with a string");
      return *text;
    };
    options.separator = name("sep");
    options.start = name("cls");
    return;
  }
  if (type == "TemplateProcessing") {
    const auto entries = [&](std::string_view key) {
      std::vector<TemplateEntry> result;
      for (const Json& item : list(key)) {
        const auto* members = item.as<Json::Object>();
        if (members == nullptr || members->size() != 1) file.fail_at(kWhere, key, "has an entry that is neither a SpecialToken nor a Sequence");
        const auto& [kind, entry] = members->front();
        result.push_back({kind, file.get<std::string>(entry, "id", kWhere).value_or(""), file.get<std::int64_t>(entry, "type_id", kWhere).value_or(-1)});
      }
      return result;
    };
    const std::vector<TemplateEntry> single = entries("single");
    const std::string start = single.front().id, separator = single.back().id;
    std::vector<TemplateEntry> bert{{"SpecialToken", start, 0}, {"Sequence", "A", 0}, {"SpecialToken", separator, 0}};
    if (single == bert) {
      bert.insert(bert.end(), {{"Sequence", "B", 1}, {"SpecialToken", separator, 1}});
      if (entries("pair") == bert) {
        options.start = start;
        options.separator = separator;
        return;
      }
    }
  }
  fail(ErrorCode::unsupported, file.name(),
       ": post_processor is not the template of BERT: start A separator, start A separator B separator");
}

// Reads the options only: load_tokenizer() takes the vocabulary from vocab.txt, although tokenizer.json has it too.
void read_tokenizer_json(const JsonFile& file, TokenizerOptions& options) {
  const Json& model = require_object(file, "model");
  require_kind(file, model, "model", "WordPiece");
  options.unknown = file.get<std::string>(model, "unk_token", "model").value_or(options.unknown);
  options.continuing_prefix = file.get<std::string>(model, "continuing_subword_prefix", "model").value_or(options.continuing_prefix);
  options.max_word_length = file.get<std::int64_t>(model, "max_input_chars_per_word", "model").value_or(options.max_word_length);
  require_kind(file, require_object(file, "pre_tokenizer"), "pre_tokenizer", "BertPreTokenizer");
  read_normalizer(file, options);
  read_post_processor(file, options);
  read_added_tokens(file, options);
}

// The text of a special token, which is a string or an object with a string "content"; `otherwise` if the file has no such key.
std::string token_name(const JsonFile& file, std::string_view key, const std::string& otherwise) {
  const Json* token = JsonFile::find(file.root(), key);
  if (token == nullptr) return otherwise;
  if (token->as<Json::Object>() != nullptr) return file.get<std::string>(*token, "content", key).value_or(otherwise);
  return file.get<std::string>(file.root(), key).value_or(otherwise);
}

struct SpecialNames {
  std::string padding = "[PAD]";
  std::string mask = "[MASK]";
};

void read_tokenizer_config(const JsonFile& file, TokenizerOptions& options, SpecialNames& names) {
  options.lowercase = file.get<bool>(file.root(), "do_lower_case").value_or(true);
  options.strip_accents = file.get<bool>(file.root(), "strip_accents");
  options.isolate_cjk = file.get<bool>(file.root(), "tokenize_chinese_chars").value_or(true);
  options.unknown = token_name(file, "unk_token", options.unknown);
  options.start = token_name(file, "cls_token", options.start);
  options.separator = token_name(file, "sep_token", options.separator);
  names = {token_name(file, "pad_token", names.padding), token_name(file, "mask_token", names.mask)};
}

}  // namespace

Tokenizer load_tokenizer(const std::filesystem::path& directory) {
  std::vector<std::string> vocabulary = read_vocabulary(directory / "vocab.txt");
  TokenizerOptions options;
  std::error_code error;
  if (std::filesystem::exists(directory / "tokenizer.json", error)) {
    read_tokenizer_json(JsonFile(directory / "tokenizer.json"), options);
    return Tokenizer(std::move(vocabulary), options);
  }
  SpecialNames names;
  if (std::filesystem::exists(directory / "tokenizer_config.json", error))
    read_tokenizer_config(JsonFile(directory / "tokenizer_config.json"), options, names);
  for (const std::string& name : {names.padding, options.unknown, options.start, options.separator, names.mask})
    for (std::size_t id = 0; id < vocabulary.size(); ++id)
      if (vocabulary[id] == name) options.added_tokens.push_back({.content = name, .id = static_cast<std::int64_t>(id)});
  return Tokenizer(std::move(vocabulary), options);
}

}  // namespace polyhead::models
