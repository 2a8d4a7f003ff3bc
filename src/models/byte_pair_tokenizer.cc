#include "polyhead/models/byte_pair_tokenizer.h"

#include <algorithm>

#include "core/text.h"
#include "io/json.h"
#include "models/byte_pairs.h"
#include "models/tokenizer/utf8.h"

namespace polyhead::models {

BytePairTokenizer::Parts::Parts(bool lower, std::vector<std::string> special) : lowercase(lower), special_tokens(std::move(special)) {
  for (const std::string& token : special_tokens) {
    if (token.empty() || !io::is_utf8(token) || std::ranges::count(special_tokens, token) > 1)
      fail(ErrorCode::invalid_argument, "byte-pair tokenizer: the special token ", io::quote(token), " is empty, not UTF-8, or given twice");
    pieces.push_back(token);
  }
  for (int byte = 0; byte < 256; ++byte) {
    ids.emplace(std::string(1, static_cast<char>(byte)), std::ssize(pieces));
    pieces.emplace_back(1, static_cast<char>(byte));
  }
}

void BytePairTokenizer::Parts::add_merge(const IdPair& pair) {
  std::string piece = pieces[static_cast<std::size_t>(pair.first)] + pieces[static_cast<std::size_t>(pair.second)];
  const auto [found, is_new] = ids.emplace(piece, std::ssize(pieces));
  if (is_new) pieces.push_back(std::move(piece));
  merges.emplace(BytePairs::pair_key(pair.first, pair.second), BytePairs::Merge{std::ssize(pairs), found->second});
  pairs.push_back(pair);
}

std::vector<Symbol> BytePairTokenizer::Parts::merge(std::string_view bytes) const {
  std::vector<Symbol> symbols;
  symbols.reserve(bytes.size());
  for (const char byte : bytes) symbols.push_back({byte_id(byte), 1});
  merge_pairs(symbols, merges);
  return symbols;
}

namespace {

BytePairText encode_pre_tokens(const BytePairTokenizer& tokenizer, const BytePairTokenizer::Parts& parts, PreTokens pre_tokens) {
  BytePairText result{.word_spans = std::move(pre_tokens.words), .replaced_bytes = pre_tokens.replaced_bytes};
  for (const PreToken& pre_token : pre_tokens.pre_tokens) {
    std::size_t first = 0;
    for (const Symbol& symbol : parts.merge(pre_token.bytes)) {
      const std::size_t last = first + symbol.length;
      ByteSpan span = pre_token.spans[first];
      for (std::size_t i = first; i < last; ++i)
        span = {std::min(span.first, pre_token.spans[i].first), std::max(span.last, pre_token.spans[i].last)};
      result.ids.push_back(symbol.id);
      result.pieces.push_back(tokenizer.piece(symbol.id));
      result.spans.push_back(span);
      result.words.push_back(pre_token.word);
      first = last;
    }
  }
  return result;
}

}  // namespace

BytePairText BytePairTokenizer::encode(std::string_view text) const { return encode_pre_tokens(*this, *parts_, split_text(text, parts_->lowercase)); }

BytePairText BytePairTokenizer::encode_words(std::string_view text) const {
  return encode_pre_tokens(*this, *parts_, split_given_words(text, parts_->lowercase));
}

std::string BytePairTokenizer::decode(std::span<const std::int64_t> ids) const {
  std::string bytes;
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= vocabulary_size())
      fail(ErrorCode::invalid_argument, "byte-pair tokenizer: id ", id, " is not in 0 .. ", vocabulary_size() - 1);
    if (id < std::ssize(parts_->special_tokens)) continue;
    std::string_view piece = parts_->pieces[static_cast<std::size_t>(id)];
    if (piece.front() == kWordMark) {
      if (ends_in_word(bytes)) bytes += ' ';
      piece.remove_prefix(1);
    }
    bytes += piece;
  }
  std::string text;
  for (const Char& c : decode_utf8(bytes).chars) append_char(text, c.code);
  return text;
}

std::int64_t BytePairTokenizer::vocabulary_size() const { return std::ssize(parts_->pieces); }
bool BytePairTokenizer::lowercase() const { return parts_->lowercase; }
const std::vector<std::string>& BytePairTokenizer::special_tokens() const { return parts_->special_tokens; }

std::int64_t BytePairTokenizer::special_token(std::string_view name) const {
  const auto found = std::ranges::find(parts_->special_tokens, name);
  if (found == parts_->special_tokens.end())
    fail(ErrorCode::invalid_argument, "byte-pair tokenizer: there is no special token '", name, "' among its ", parts_->special_tokens.size());
  return found - parts_->special_tokens.begin();
}

std::string BytePairTokenizer::piece(std::int64_t id) const {
  if (id < 0 || id >= vocabulary_size())
    fail(ErrorCode::invalid_argument, "byte-pair tokenizer: id ", id, " is not in 0 .. ", vocabulary_size() - 1);
  const std::string& bytes = parts_->pieces[static_cast<std::size_t>(id)];
  return id < std::ssize(parts_->special_tokens) ? bytes : visible_piece(bytes);
}

}  // namespace polyhead::models
