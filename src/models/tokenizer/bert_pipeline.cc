#include "models/tokenizer/bert_pipeline.h"

#include <unordered_map>
#include <utility>

#include "core/text.h"

namespace polyhead::models {
namespace {

Vocabulary numbered_vocabulary(std::vector<std::string> pieces) {
  std::vector<VocabularyEntry> entries;
  std::unordered_map<std::string_view, std::size_t> lines;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].empty()) fail(ErrorCode::format, "vocabulary: line ", i + 1, " is empty; every line holds one piece");
    if (const auto [line, added] = lines.emplace(pieces[i], i + 1); !added)
      fail(ErrorCode::format, "vocabulary: line ", i + 1, " repeats the piece '", pieces[i], "' of line ", line->second);
  }
  entries.reserve(pieces.size());
  for (std::string& piece : pieces) entries.push_back({std::move(piece), std::ssize(entries)});
  return Vocabulary(std::move(entries), "vocabulary");
}

std::int64_t required_piece(const Vocabulary& vocabulary, const std::string& piece, std::string_view role) {
  const auto id = vocabulary.find(piece);
  if (!id) fail(ErrorCode::format, "vocabulary: the ", role, " token '", piece, "' is not among its ", vocabulary.size(), " pieces");
  return *id;
}

}  // namespace

PipelineParts bert_pipeline(std::vector<std::string> pieces, const BertTokenizerOptions& options) {
  Vocabulary vocabulary = numbered_vocabulary(std::move(pieces));
  required_piece(vocabulary, options.unknown, "unknown");
  const TemplatePart start{.special = {{required_piece(vocabulary, options.start, "start"), options.start}}};
  const TemplatePart separator{.special = {{required_piece(vocabulary, options.separator, "separator"), options.separator}}};
  TemplatePart last = separator;
  last.segment = 1;
  const TemplatePart text{.text = 0}, pair{.text = 1, .segment = 1};
  return {.normalizer = {BertNormalizer{.clean_text = options.clean_text,
                                        .isolate_cjk = options.isolate_cjk,
                                        .strip_accents = options.strip_accents.value_or(options.lowercase),
                                        .lowercase = options.lowercase}},
          .pre_tokenizer = bert_words(),
          .model = WordPiece{.unknown = options.unknown, .continuing_prefix = options.continuing_prefix, .max_word_length = options.max_word_length},
          .vocabulary = std::move(vocabulary),
          .post_processor = {Template{.single = {start, text, separator}, .pair = {start, text, separator, pair, last}}},
          .decoder = {DecodeWordPiece{.prefix = options.continuing_prefix}},
          .added_tokens = options.added_tokens};
}

}  // namespace polyhead::models
