#include <algorithm>
#include <array>
#include <limits>

#include "models/tokenizer/read_stages.h"

namespace polyhead::models {
namespace {

using io::Json;

void require_off(const JsonNode& node, std::string_view key, std::string_view meaning) {
  if (const auto value = node.get<double>(key); value && *value != 0)
    fail(ErrorCode::unsupported, node.location(key), " is ", *value, ": ", meaning, " is not supported; it must be absent, null or 0");
}

ModelParts read_word_level(const JsonNode& node) { return {WordLevel{node.required<std::string>("unk_token")}, read_vocabulary(node, "vocab")}; }

ModelParts read_word_piece(const JsonNode& node) {
  return {WordPiece{.unknown = node.get<std::string>("unk_token").value_or("[UNK]"),
                    .continuing_prefix = node.get<std::string>("continuing_subword_prefix").value_or("##"),
                    .max_word_length = node.get<std::int64_t>("max_input_chars_per_word").value_or(100)},
          read_vocabulary(node, "vocab")};
}

ModelParts read_byte_pairs(const JsonNode& node) {
  require_off(node, "dropout", "random dropping of merges");
  BytePairs model{.unknown = node.get<std::string>("unk_token"),
                  .continuing_prefix = node.get<std::string>("continuing_subword_prefix").value_or(""),
                  .end_suffix = node.get<std::string>("end_of_word_suffix").value_or(""),
                  .fuse_unknown = node.get<bool>("fuse_unk").value_or(false),
                  .byte_fallback = node.get<bool>("byte_fallback").value_or(false),
                  .ignore_merges = node.get<bool>("ignore_merges").value_or(false),
                  .merges = {}};
  Vocabulary vocabulary = read_vocabulary(node, "vocab");
  const Json::Array& merges = node.array("merges");
  model.merges.reserve(merges.size());
  std::int64_t rank = 0;
  for (const Json& merge : merges) {
    const std::string where = cat(node.location("merges"), "[", rank, "]");
    if (const auto* line = merge.as<std::string>()) {
      if (line->starts_with("#version")) continue;
      add_merge(model, *line, rank++, vocabulary, where);
      continue;
    }
    const auto* pair = merge.as<Json::Array>();
    if (pair == nullptr || pair->size() != 2 || (*pair)[0].as<std::string>() == nullptr || (*pair)[1].as<std::string>() == nullptr)
      fail(ErrorCode::format, where, " is neither \"first second\" nor a pair of strings");
    add_merge(model, *(*pair)[0].as<std::string>(), *(*pair)[1].as<std::string>(), rank++, vocabulary, where);
  }
  return {std::move(model), std::move(vocabulary)};
}

ModelParts read_unigram(const JsonNode& node) {
  require_off(node, "alpha", "sampling");
  require_off(node, "nbest_size", "sampling");
  Unigram model{.scores = {}, .least_score = std::numeric_limits<double>::infinity(), .unknown = node.get<std::int64_t>("unk_id"), .byte_fallback = node.get<bool>("byte_fallback").value_or(false)};
  std::vector<VocabularyEntry> entries;
  for (const Json& item : node.array("vocab")) {
    const auto* pair = item.as<Json::Array>();
    const auto fail_entry = [&] { node.fail_at(cat("vocab[", entries.size(), "]"), "is not a piece and its score"); };
    if (pair == nullptr || pair->size() != 2 || (*pair)[0].as<std::string>() == nullptr) fail_entry();
    const std::optional<double> score = as_number((*pair)[1]);
    if (!score) fail_entry();
    model.scores.push_back(*score);
    model.least_score = std::min(model.least_score, *score);
    entries.push_back({*(*pair)[0].as<std::string>(), std::ssize(entries)});
  }
  if (model.unknown && (*model.unknown < 0 || *model.unknown >= std::ssize(entries)))
    node.fail_at("unk_id", cat("is ", *model.unknown, "; the vocabulary has ", entries.size(), " pieces"));
  return {std::move(model), Vocabulary(std::move(entries), node.location("vocab"))};
}

struct ModelKind {
  std::string_view name;
  std::vector<std::string_view> keys;
  ModelParts (*read)(const JsonNode& node);
};

const std::array<ModelKind, 4>& kinds() {
  static const std::array<ModelKind, 4> table{{
      {"BPE", {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}, read_byte_pairs},
      {"WordPiece", {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"}, read_word_piece},
      {"WordLevel", {"type", "unk_token", "vocab"}, read_word_level},
      {"Unigram", {"type", "unk_id", "vocab", "byte_fallback", "alpha", "nbest_size"}, read_unigram},
  }};
  return table;
}

// Returns the type of the model. Files of old versions of `tokenizers` do not name the type, so it is guessed from the keys of the file.
std::string type_of(const JsonNode& node) {
  if (node.has("type")) return node.required<std::string>("type");
  if (node.has("merges")) return "BPE";
  if (const Json* vocabulary = JsonFile::find(node.json(), "vocab"); vocabulary != nullptr && vocabulary->as<Json::Array>() != nullptr) return "Unigram";
  return node.has("max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

}  // namespace

ModelParts read_model(const JsonNode& node) {
  const std::string type = type_of(node);
  for (const ModelKind& kind : kinds()) {
    if (kind.name != type) continue;
    node.file().allow_only(node.json(), kind.keys, node.where());
    return kind.read(node);
  }
  fail(ErrorCode::unsupported, node.location("type"), " is '", type, "', which is not supported; supported: ", join(kinds(), &ModelKind::name));
}

Vocabulary read_vocabulary(const JsonNode& node, std::string_view key) {
  const JsonNode object = node.member(key);
  return read_vocabulary(object.file(), object.json(), object.where());
}

Vocabulary read_vocabulary(const JsonFile& file, const Json& object, std::string_view where) {
  std::vector<VocabularyEntry> entries;
  for (const auto& [piece, json] : *object.as<Json::Object>()) {
    const auto* id = json.as<std::uint64_t>();
    if (id == nullptr || *id >= std::uint64_t{1} << 31)
      fail(ErrorCode::format, file.name(), ": ", where, where.empty() ? "" : ": ", "the id of ", io::quote(piece), " is ", io::describe(json), "; ids are integers in [0, 2^31)");
    entries.push_back({piece, static_cast<std::int64_t>(*id)});
  }
  return Vocabulary(std::move(entries), cat(file.name(), where.empty() ? "" : ": ", where));
}

void add_merge(BytePairs& model, std::string_view first, std::string_view second, std::int64_t rank, const Vocabulary& vocabulary, std::string_view where) {
  const std::size_t cut = model.continuing_prefix.size();
  if (second.size() < cut) fail(ErrorCode::format, where, ": ", io::quote(second), " is shorter than continuing_subword_prefix");
  const std::string merged = cat(first, second.substr(cut));
  const auto id = [&](std::string_view piece) {
    const auto found = vocabulary.find(piece);
    if (!found) fail(ErrorCode::format, where, ": ", io::quote(piece), " is not in the vocabulary");
    return *found;
  };
  model.merges[BytePairs::pair_key(id(first), id(second))] = {.rank = rank, .id = id(merged)};
}

void add_merge(BytePairs& model, std::string_view line, std::int64_t rank, const Vocabulary& vocabulary, std::string_view where) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) fail(ErrorCode::format, where, " is ", io::quote(line), "; it must be two pieces with one space between");
  add_merge(model, line.substr(0, space), line.substr(space + 1), rank, vocabulary, where);
}

}  // namespace polyhead::models
