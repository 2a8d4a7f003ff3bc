#include "polyhead/models/tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "core/text.h"
#include "io/json.h"
#include "models/tokenizer/pipeline.h"

namespace polyhead::models {
namespace {

// Returns how many tokens each of two texts keeps, so that together they fit into `room`. The longer text is shortened first; once the lengths are
// equal, both are shortened.
std::pair<std::size_t, std::size_t> longest_first(std::size_t a, std::size_t b, std::size_t room) {
  if (a + b <= room) return {a, b};
  const std::size_t shorter = std::min({a, b, room / 2});
  return a <= b ? std::pair(shorter, room - shorter) : std::pair(room - shorter, shorter);
}

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

// Returns the steps of BERT's tokenizer.
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

}  // namespace

Tokenizer::Tokenizer(std::vector<std::string> vocabulary, const BertTokenizerOptions& options)
    : parts_(std::make_shared<const Parts>(bert_pipeline(std::move(vocabulary), options))) {}

TokenizedText Tokenizer::encode(std::string_view text, const EncodeOptions& options) const { return encode_texts({text}, options); }

TokenizedText Tokenizer::encode(std::string_view text, std::string_view pair, const EncodeOptions& options) const { return encode_texts({text, pair}, options); }

TokenizedText Tokenizer::encode_texts(const std::vector<std::string_view>& texts, const EncodeOptions& options) const {
  TokenizedText result;
  std::vector<std::vector<TextToken>> parts;
  std::size_t length = 0;
  for (const std::string_view text : texts) {
    for (const std::string& missing : parts_->pipeline.parts().missing_tokens)
      if (text.find(missing) != std::string_view::npos)
        fail(ErrorCode::unsupported, "tokenizer: the text has ", io::quote(missing), ". A file beside tokenizer.json names this token, tokenizer.json has no piece for it, and the model may have no row for it");
    DecodedBytes decoded = align_utf8(text);
    result.replaced_bytes += decoded.replaced_bytes;
    parts.push_back(parts_->pipeline.tokenize(std::move(decoded.text), static_cast<int>(parts.size())));
    length += parts.back().size();
  }
  const std::int64_t special = parts_->pipeline.special_count(texts.size() > 1);
  length += static_cast<std::size_t>(special);
  if (options.max_length) {
    const std::int64_t max = *options.max_length;
    if (max < special) fail(ErrorCode::invalid_argument, "tokenizer: max_length is ", max, "; the ", special, " special tokens alone need ", special);
    if (length > static_cast<std::size_t>(max)) {
      if (options.when_too_long == WhenTooLong::error)
        fail(ErrorCode::invalid_argument, "tokenizer: the text has ", length, " tokens; at most ", max, " are allowed (truncation keeps the first)");
      const auto room = static_cast<std::size_t>(max - special);
      const auto [first, second] = longest_first(parts[0].size(), texts.size() > 1 ? parts[1].size() : 0, room);
      parts[0].resize(first);
      if (texts.size() > 1) parts[1].resize(second);
      result.dropped_tokens = static_cast<std::int64_t>(length) - max;
    }
  }

  const auto unknown = parts_->pipeline.unknown();
  for (TextToken& token : parts_->pipeline.post_process(std::move(parts), texts)) {
    if (token.id == unknown && token.text >= 0 && token.found.empty()) {  // if `found` is set, the text itself contains the unknown token
      const std::string_view source = texts[static_cast<std::size_t>(token.text)].substr(token.span.first, token.span.last - token.span.first);
      if (source != token.piece) result.unknown.emplace_back(std::ssize(result.ids), source);
    }
    result.ids.push_back(token.id);
    result.pieces.push_back(std::move(token.piece));
    result.segments.push_back(token.segment);
    result.special.push_back(token.text < 0);
    result.texts.push_back(token.text);
    result.spans.push_back(token.span);
  }
  return result;
}

std::string Tokenizer::decode(std::span<const std::int64_t> ids, bool skip_special) const { return parts_->pipeline.decode(ids, skip_special); }

std::optional<std::string> Tokenizer::piece(std::int64_t id) const { return parts_->pipeline.piece(id); }

std::int64_t Tokenizer::vocabulary_size() const { return parts_->pipeline.parts().vocabulary.size(); }

std::int64_t Tokenizer::id_limit() const { return parts_->pipeline.id_limit(); }

std::optional<std::int64_t> Tokenizer::find(std::string_view piece) const { return parts_->pipeline.find(piece); }

const std::vector<AddedToken>& Tokenizer::added_tokens() const { return parts_->pipeline.parts().added_tokens; }

}  // namespace polyhead::models
