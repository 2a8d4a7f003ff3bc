#include "polyhead/models/byte_pair_tokenizer.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

#include "core/text.h"
#include "io/json.h"
#include "models/byte_pairs.h"

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
  ranks.emplace(pair, merges.size());
  merges.push_back({pair, found->second});
}

std::vector<std::int64_t> BytePairTokenizer::Parts::merge(std::string_view bytes) const {
  // Keeps a linked list of tokens, and a queue of possible merges, ordered by rank and then by place. An entry of the queue is skipped if its tokens have
  // changed since it was queued. n bytes take O(n log n) time.
  struct Node {
    std::int64_t id;
    std::size_t next;
    std::size_t before;
  };
  const std::size_t end = bytes.size();
  std::vector<Node> nodes(end);
  for (std::size_t i = 0; i < end; ++i) nodes[i] = {byte_id(bytes[i]), i + 1, i == 0 ? end : i - 1};
  using Entry = std::tuple<std::size_t, std::size_t>;  // rank, place of the left token
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto rank_at = [&](std::size_t i) {
    if (nodes[i].id < 0 || nodes[i].next == end) return merges.size();
    const auto found = ranks.find({nodes[i].id, nodes[nodes[i].next].id});
    return found == ranks.end() ? merges.size() : found->second;
  };
  const auto offer = [&](std::size_t i) {
    if (const std::size_t rank = rank_at(i); rank < merges.size()) queue.emplace(rank, i);
  };
  for (std::size_t i = 0; i < end; ++i) offer(i);
  while (!queue.empty()) {
    const auto [rank, i] = queue.top();
    queue.pop();
    if (rank_at(i) != rank) continue;
    const std::size_t gone = nodes[i].next;
    nodes[i] = {merges[rank].result, nodes[gone].next, nodes[i].before};
    nodes[gone].id = -1;
    if (nodes[i].next != end) nodes[nodes[i].next].before = i;
    offer(i);
    if (nodes[i].before != end) offer(nodes[i].before);
  }
  std::vector<std::int64_t> result;
  for (std::size_t i = 0; i < end; i = nodes[i].next) result.push_back(nodes[i].id);
  return result;
}

namespace {

BytePairText encode_pre_tokens(const BytePairTokenizer& tokenizer, const BytePairTokenizer::Parts& parts, PreTokens pre_tokens) {
  BytePairText result{.word_spans = std::move(pre_tokens.words), .replaced_bytes = pre_tokens.replaced_bytes};
  for (const PreToken& pre_token : pre_tokens.pre_tokens) {
    std::size_t first = 0;
    for (const std::int64_t id : parts.merge(pre_token.bytes)) {
      const std::size_t last = first + parts.pieces[static_cast<std::size_t>(id)].size();
      ByteSpan span = pre_token.spans[first];
      for (std::size_t i = first; i < last; ++i)
        span = {std::min(span.first, pre_token.spans[i].first), std::max(span.last, pre_token.spans[i].last)};
      result.ids.push_back(id);
      result.pieces.push_back(tokenizer.piece(id));
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
  for (const Char& c : decode_utf8(bytes).chars) append_utf8(text, c.code);
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
