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

using nlohmann::json;

std::vector<std::string> read_vocabulary(const std::filesystem::path& path) {
  const io::FileBytes file = io::map_file(path);
  const std::string_view content = file.text();
  std::vector<std::string> pieces;
  for (std::size_t first = 0; first < content.size();) {
    // Only \n and \r\n end a line: published vocabularies hold U+2028 and U+3000 as pieces.
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

void require_kind(const JsonFile& file, const json& object, std::string_view where, std::string_view wanted) {
  const auto type = file.text(object, "type", where);
  if (type != wanted)
    fail(ErrorCode::unsupported, file.name(), ": ", where, ".type is '", type.value_or("missing"), "'; only '", wanted, "' can be read");
}

const json& require_object(const JsonFile& file, std::string_view key) {
  const json& object = file.require(file.root(), key);
  if (!object.is_object()) file.fail_at("", key, "is not an object");
  return object;
}

void read_normalizer(const JsonFile& file, TokenizerOptions& options) {
  if (JsonFile::find(file.root(), "normalizer") == nullptr) {
    options.clean_text = options.isolate_cjk = options.lowercase = false;
    options.strip_accents = false;
    return;
  }
  const json& normalizer = require_object(file, "normalizer");
  require_kind(file, normalizer, "normalizer", "BertNormalizer");
  options.clean_text = file.boolean(normalizer, "clean_text", "normalizer").value_or(true);
  options.isolate_cjk = file.boolean(normalizer, "handle_chinese_chars", "normalizer").value_or(true);
  options.lowercase = file.boolean(normalizer, "lowercase", "normalizer").value_or(true);
  options.strip_accents = file.boolean(normalizer, "strip_accents", "normalizer");
}

void read_added_tokens(const JsonFile& file, TokenizerOptions& options) {
  const json* list = JsonFile::find(file.root(), "added_tokens");
  if (list == nullptr) return;
  if (!list->is_array()) file.fail_at("", "added_tokens", "is not a list");
  for (const json& entry : *list) {
    if (!entry.is_object()) file.fail_at("", "added_tokens", "holds something that is not an object");
    AddedToken token;
    const auto content = file.text(entry, "content", "added_tokens");
    const auto id = file.integer(entry, "id", "added_tokens");
    if (!content) file.fail_at("added_tokens", "content", "is missing");
    if (!id || *id < 0) file.fail_at("added_tokens", "id", id ? "is negative" : "is missing");
    token.content = *content;
    token.id = *id;
    token.single_word = file.boolean(entry, "single_word", "added_tokens").value_or(false);
    token.strip_left = file.boolean(entry, "lstrip", "added_tokens").value_or(false);
    token.strip_right = file.boolean(entry, "rstrip", "added_tokens").value_or(false);
    token.normalized = file.boolean(entry, "normalized", "added_tokens").value_or(false);
    options.added_tokens.push_back(std::move(token));
  }
}

// BertProcessing names its two tokens; a TemplateProcessing must be the template that BERT uses.
void read_post_processor(const JsonFile& file, TokenizerOptions& options) {
  const json& processor = require_object(file, "post_processor");
  const auto type = file.text(processor, "type", "post_processor");
  try {
    if (type == "BertProcessing") {
      options.separator = processor.at("sep").at(0).get<std::string>();
      options.start = processor.at("cls").at(0).get<std::string>();
      return;
    }
    if (type == "TemplateProcessing") {
      const json& single = processor.at("single");
      const std::string start = single.at(0).at("SpecialToken").at("id").get<std::string>();
      const std::string separator = single.at(single.size() - 1).at("SpecialToken").at("id").get<std::string>();
      const auto special = [](const std::string& name, int segment) {
        return json{{"SpecialToken", {{"id", name}, {"type_id", segment}}}};
      };
      const auto sequence = [](const std::string& name, int segment) { return json{{"Sequence", {{"id", name}, {"type_id", segment}}}}; };
      const json bert_single = json::array({special(start, 0), sequence("A", 0), special(separator, 0)});
      const json bert_pair =
          json::array({special(start, 0), sequence("A", 0), special(separator, 0), sequence("B", 1), special(separator, 1)});
      if (single == bert_single && processor.at("pair") == bert_pair) {
        options.start = start;
        options.separator = separator;
        return;
      }
    }
  } catch (const json::exception&) {
    file.fail_at("", "post_processor", "is malformed");
  }
  fail(ErrorCode::unsupported, file.name(),
       ": post_processor is not the template of BERT: start A separator, start A separator B separator");
}

// Describes the whole tokenizer, its vocabulary too; vocab.txt is what is read for that.
void read_tokenizer_json(const JsonFile& file, TokenizerOptions& options) {
  const json& model = require_object(file, "model");
  require_kind(file, model, "model", "WordPiece");
  options.unknown = file.text(model, "unk_token", "model").value_or(options.unknown);
  options.continuing_prefix = file.text(model, "continuing_subword_prefix", "model").value_or(options.continuing_prefix);
  options.max_word_length = file.integer(model, "max_input_chars_per_word", "model").value_or(options.max_word_length);
  require_kind(file, require_object(file, "pre_tokenizer"), "pre_tokenizer", "BertPreTokenizer");
  read_normalizer(file, options);
  read_post_processor(file, options);
  read_added_tokens(file, options);
}

// A token is a string, or an object with a string "content".
std::string token_name(const JsonFile& file, std::string_view key, const std::string& otherwise) {
  const json* token = JsonFile::find(file.root(), key);
  if (token == nullptr) return otherwise;
  if (token->is_object()) return file.text(*token, "content", key).value_or(otherwise);
  return file.text(file.root(), key).value_or(otherwise);
}

struct SpecialNames {
  std::string padding = "[PAD]";
  std::string mask = "[MASK]";
};

SpecialNames read_tokenizer_config(const JsonFile& file, TokenizerOptions& options) {
  options.lowercase = file.boolean(file.root(), "do_lower_case").value_or(true);
  options.strip_accents = file.boolean(file.root(), "strip_accents");
  options.isolate_cjk = file.boolean(file.root(), "tokenize_chinese_chars").value_or(true);
  options.unknown = token_name(file, "unk_token", options.unknown);
  options.start = token_name(file, "cls_token", options.start);
  options.separator = token_name(file, "sep_token", options.separator);
  return {token_name(file, "pad_token", "[PAD]"), token_name(file, "mask_token", "[MASK]")};
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
    names = read_tokenizer_config(JsonFile(directory / "tokenizer_config.json"), options);
  for (const std::string& name : {names.padding, options.unknown, options.start, options.separator, names.mask})
    for (std::size_t id = 0; id < vocabulary.size(); ++id)
      if (vocabulary[id] == name) options.added_tokens.push_back({.content = name, .id = static_cast<std::int64_t>(id)});
  return Tokenizer(std::move(vocabulary), options);
}

}  // namespace polyhead::models
