#include "polyhead/models/tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "core/text.h"
#include "models/added_tokens.h"
#include "models/wordpiece.h"
#include "models/words.h"

namespace polyhead::models {
namespace {

std::int64_t required_piece(const Vocabulary& vocabulary, const std::string& piece, std::string_view role) {
  const auto id = vocabulary.find(piece);
  if (!id) fail(ErrorCode::format, "vocabulary: the ", role, " token '", piece, "' is not among its ", vocabulary.size(), " pieces");
  return *id;
}

AddedTokenFinder make_finder(const TokenizerOptions& options, bool normalized) {
  std::vector<std::pair<const AddedToken*, std::vector<Char>>> tokens;
  for (const AddedToken& token : options.added_tokens) {
    if (token.normalized != normalized) continue;
    std::vector<Char> content = decode_utf8(token.content).chars;
    tokens.emplace_back(&token, normalized ? normalize(content, options) : std::move(content));
  }
  return AddedTokenFinder(std::move(tokens));
}

// How many tokens each of two texts keeps so that together they fit into `room`. The longer text is shortened first; once the lengths are
// equal, both are shortened.
std::pair<std::size_t, std::size_t> longest_first(std::size_t a, std::size_t b, std::size_t room) {
  if (a + b <= room) return {a, b};
  const std::size_t shorter = std::min({a, b, room / 2});
  return a <= b ? std::pair(shorter, room - shorter) : std::pair(room - shorter, shorter);
}

}  // namespace

struct Tokenizer::Parts {
  Parts(std::vector<std::string> pieces, const TokenizerOptions& given)
      : options(given),
        vocabulary(std::move(pieces)),
        unknown(required_piece(vocabulary, options.unknown, "unknown")),
        start(required_piece(vocabulary, options.start, "start")),
        separator(required_piece(vocabulary, options.separator, "separator")),
        raw_tokens(make_finder(options, false)),
        normalized_tokens(make_finder(options, true)) {
    for (const AddedToken& token : options.added_tokens) {
      const auto id = vocabulary.find(token.content);
      if (id && *id != token.id)
        fail(ErrorCode::format, "tokenizer: the added token '", token.content, "' has id ", token.id, ", but the vocabulary gives it ",
             *id);
      if (!id && token.id >= 0 && token.id < vocabulary.size())
        fail(ErrorCode::format, "tokenizer: the added token '", token.content, "' has id ", token.id, ", which is '",
             vocabulary.piece(token.id), "' in the vocabulary");
    }
  }

  std::vector<std::pair<Piece, std::string_view>> tokenize(std::span<const Char> text) const {
    std::vector<std::pair<Piece, std::string_view>> result;
    std::vector<Piece> pieces;
    const auto add_token = [&](const Section& section) {
      result.push_back({{section.token->id, covering_span(section.chars)}, section.token->content});
    };
    for (const Section& raw : raw_tokens.split(text)) {
      if (raw.token != nullptr) {
        add_token(raw);
        continue;
      }
      const std::vector<Char> normal = normalize(raw.chars, options);
      for (const Section& section : normalized_tokens.split(normal)) {
        if (section.token != nullptr) {
          add_token(section);
          continue;
        }
        pieces.clear();
        for (const auto word : split_words(section.chars))
          append_word_pieces(pieces, word, vocabulary, options.continuing_prefix, options.max_word_length, unknown);
        for (const Piece& piece : pieces) result.emplace_back(piece, vocabulary.piece(piece.id));
      }
    }
    return result;
  }

  TokenizerOptions options;
  Vocabulary vocabulary;
  std::int64_t unknown, start, separator;
  AddedTokenFinder raw_tokens, normalized_tokens;
};

Tokenizer::Tokenizer(std::vector<std::string> vocabulary, const TokenizerOptions& options)
    : parts_(std::make_shared<const Parts>(std::move(vocabulary), options)) {}

TokenizedText Tokenizer::encode(std::string_view text, const EncodeOptions& options) const { return encode_texts(text, nullptr, options); }

TokenizedText Tokenizer::encode(std::string_view text, std::string_view pair, const EncodeOptions& options) const {
  return encode_texts(text, &pair, options);
}

TokenizedText Tokenizer::encode_texts(std::string_view text, const std::string_view* pair, const EncodeOptions& options) const {
  TokenizedText result;
  const DecodedText decoded = decode_utf8(text);
  const DecodedText decoded_pair = pair != nullptr ? decode_utf8(*pair) : DecodedText{};
  result.replaced_bytes = decoded.replaced_bytes + decoded_pair.replaced_bytes;
  auto first = parts_->tokenize(decoded.chars);
  auto second = parts_->tokenize(decoded_pair.chars);

  const std::size_t template_tokens = pair != nullptr ? 3 : 2;
  const std::size_t length = first.size() + second.size() + template_tokens;
  if (options.max_length) {
    const std::int64_t max = *options.max_length;
    if (max < static_cast<std::int64_t>(template_tokens))
      fail(ErrorCode::invalid_argument, "tokenizer: max_length is ", max, "; the ", template_tokens, " special tokens alone need ",
           template_tokens);
    if (length > static_cast<std::size_t>(max)) {
      if (options.when_too_long == WhenTooLong::error)
        fail(ErrorCode::invalid_argument, "tokenizer: the text has ", length, " tokens; at most ", max,
             " are allowed (truncation keeps the first)");
      const auto [keep_first, keep_second] = longest_first(first.size(), second.size(), static_cast<std::size_t>(max) - template_tokens);
      first.resize(keep_first);
      second.resize(keep_second);
      result.dropped_tokens = static_cast<std::int64_t>(length) - max;
    }
  }

  const auto add = [&](std::int64_t id, std::string_view piece, int segment, bool special, ByteSpan span) {
    result.ids.push_back(id);
    result.pieces.emplace_back(piece);
    result.segments.push_back(segment);
    result.special.push_back(special);
    result.spans.push_back(span);
    const std::string_view source = (segment == 0 ? text : *pair).substr(span.first, span.last - span.first);
    const bool written = source == parts_->options.unknown;  // the text itself says "[UNK]"
    if (id == parts_->unknown && !special && !written) result.unknown.emplace_back(std::ssize(result.ids) - 1, source);
  };
  const TokenizerOptions& names = parts_->options;
  add(parts_->start, names.start, 0, true, {});
  for (const auto& [piece, content] : first) add(piece.id, content, 0, false, piece.span);
  add(parts_->separator, names.separator, 0, true, {});
  if (pair != nullptr) {
    for (const auto& [piece, content] : second) add(piece.id, content, 1, false, piece.span);
    add(parts_->separator, names.separator, 1, true, {});
  }
  return result;
}

std::int64_t Tokenizer::vocabulary_size() const { return parts_->vocabulary.size(); }

std::optional<std::int64_t> Tokenizer::find(std::string_view piece) const { return parts_->vocabulary.find(piece); }

const TokenizerOptions& Tokenizer::options() const { return parts_->options; }

}  // namespace polyhead::models
