#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/text.h"
#include "io/file_bytes.h"
#include "models/json_file.h"
#include "models/tokenizer/bert_pipeline.h"
#include "models/tokenizer/read_stages.h"
#include "polyhead/models/tokenizer.h"

namespace polyhead::models {
namespace {

using io::Json;

// Only \n and \r\n end a line, and spaces are kept: published vocabularies have U+2028 and U+3000 as pieces.
std::vector<std::string> read_lines(const std::filesystem::path& path) {
  const io::FileBytes file = io::read_file(path);
  const std::string_view content = file.text();
  std::vector<std::string> lines;
  for (std::size_t first = 0; first < content.size();) {
    std::size_t last = content.find('\n', first);
    if (last == std::string::npos) last = content.size();
    std::size_t end = last;
    if (end > first && content[end - 1] == '\r') --end;
    lines.emplace_back(content.substr(first, end - first));
    first = last + 1;
  }
  return lines;
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

void read_tokenizer_config(const JsonFile& file, BertTokenizerOptions& options, SpecialNames& names) {
  options.lowercase = file.get<bool>(file.root(), "do_lower_case").value_or(true);
  options.strip_accents = file.get<bool>(file.root(), "strip_accents");
  options.isolate_cjk = file.get<bool>(file.root(), "tokenize_chinese_chars").value_or(true);
  options.unknown = token_name(file, "unk_token", options.unknown);
  options.start = token_name(file, "cls_token", options.start);
  options.separator = token_name(file, "sep_token", options.separator);
  names = {token_name(file, "pad_token", names.padding), token_name(file, "mask_token", names.mask)};
}

bool has(const std::filesystem::path& directory, std::string_view name) {
  std::error_code error;
  return std::filesystem::exists(directory / name, error);
}

Tokenizer load_bert_tokenizer(const std::filesystem::path& directory) {
  std::vector<std::string> vocabulary = read_lines(directory / "vocab.txt");
  if (vocabulary.empty()) fail(ErrorCode::format, "vocab.txt: is empty; it holds one piece per line");
  for (std::size_t i = 0; i < vocabulary.size(); ++i)
    if (!io::is_utf8(vocabulary[i])) fail(ErrorCode::format, "vocab.txt: line ", i + 1, " is not UTF-8");
  BertTokenizerOptions options;
  SpecialNames names;
  if (has(directory, "tokenizer_config.json")) read_tokenizer_config(JsonFile(directory / "tokenizer_config.json"), options, names);
  for (const std::string& name : std::set<std::string>{names.padding, options.unknown, options.start, options.separator, names.mask})
    for (std::size_t id = 0; id < vocabulary.size(); ++id)
      if (vocabulary[id] == name) options.added_tokens.push_back({.content = name, .id = static_cast<std::int64_t>(id), .special = true});
  return Tokenizer(std::move(vocabulary), options);
}

// Other tokenizers have files of the same names and put other special tokens around a text.
void require_gpt2(const std::filesystem::path& directory) {
  const auto require_name = [&](const char* name, std::string_view key, std::string_view begins) {
    if (!has(directory, name)) return false;
    const JsonFile file(directory / name);
    const auto value = file.get<std::string>(file.root(), key);
    if (value && !value->starts_with(begins))
      fail(ErrorCode::unsupported, name, ": ", key, " is '", *value, "'; vocab.json with merges.txt is read for GPT-2 alone. transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) "
           "writes tokenizer.json, which says all");
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
  parts.pre_tokenizer.emplace_back(ByteLevelWords{.add_prefix_space = false, .pattern = {gpt2_pattern()}});
  parts.decoder.emplace_back(DecodeByteLevel{});
  const std::string end = "<|endoftext|>";
  if (const auto id = parts.vocabulary.find(end)) parts.added_tokens.push_back({.content = end, .id = *id, .special = true});
  return Tokenizer(std::make_shared<const Tokenizer::Parts>(std::move(parts)));
}

[[noreturn]] void fail_without_tokenizer(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  if (error) fail(ErrorCode::io, "cannot read the folder ", directory.string(), ": ", error.message());
  constexpr std::string_view kConvert = "transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)";
  for (; entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (error) break;
    const std::filesystem::path& path = entry->path();
    if (path.extension() == ".model" || path.extension() == ".spm")
      fail(ErrorCode::unsupported, path.string(), " is a model of sentencepiece, which is not read; this writes tokenizer.json beside it, in Python: ", kConvert);
  }
  fail(ErrorCode::io, directory.string(), " has no tokenizer: tokenizer.json, vocab.txt, or vocab.json and merges.txt");
}

}  // namespace

Tokenizer load_tokenizer(const std::filesystem::path& directory) {
  if (has(directory, "tokenizer.json")) return Tokenizer(std::make_shared<const Tokenizer::Parts>(read_tokenizer_json(JsonFile(directory / "tokenizer.json"))));
  if (has(directory, "vocab.txt")) return load_bert_tokenizer(directory);
  if (has(directory, "vocab.json") && has(directory, "merges.txt")) return load_gpt2_tokenizer(directory);
  fail_without_tokenizer(directory);
}

}  // namespace polyhead::models
