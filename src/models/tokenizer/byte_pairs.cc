// Byte-pair encoding of one word with a heap of pairs.
#include <queue>
#include <tuple>

#include "core/text.h"
#include "io/json.h"
#include "models/tokenizer/utf8.h"
#include "models/tokenizer/word_model.h"

namespace polyhead::models {
namespace {

// A pair of neighbours that may be merged: the left symbol, and the merged piece. The candidate is stale once one of the two symbols has changed.
struct Candidate {
  std::int64_t rank;
  std::size_t left;
  std::int64_t id;
  // The greatest element is on top of std::priority_queue. So the candidate with the least rank is the greatest; of equal ranks the leftmost.
  bool operator<(const Candidate& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
};

class PairMerger {
 public:
  PairMerger(std::vector<Symbol>& symbols, const BytePairs::Merges& merges) : symbols_(symbols), merges_(merges) {}

  void merge_all() {
    for (std::size_t i = 0; i < symbols_.size(); ++i) {
      if (i > 0) symbols_[i].before = i - 1;
      if (i + 1 < symbols_.size()) symbols_[i].after = i + 1;
    }
    for (std::size_t i = 0; i + 1 < symbols_.size(); ++i) add_candidate(i);
    while (!candidates_.empty()) {
      const Candidate best = candidates_.top();
      candidates_.pop();
      merge(best);
    }
    std::erase_if(symbols_, [](const Symbol& symbol) { return symbol.length == 0; });
  }

 private:
  const BytePairs::Merge* merge_of(std::size_t left) const {
    const std::size_t right = symbols_[left].after;
    if (symbols_[left].length == 0 || right == Symbol::kNone) return nullptr;
    const auto found = merges_.find(BytePairs::pair_key(symbols_[left].id, symbols_[right].id));
    return found == merges_.end() ? nullptr : &found->second;
  }

  void add_candidate(std::size_t left) {
    if (const auto* merge = merge_of(left)) candidates_.push({merge->rank, left, merge->id});
  }

  void merge(const Candidate& pair) {
    const auto* current = merge_of(pair.left);
    if (current == nullptr || current->id != pair.id) return;
    Symbol& left = symbols_[pair.left];
    Symbol& right = symbols_[left.after];
    left.id = pair.id;
    left.length += right.length;
    right.length = 0;  // marks the right symbol as merged into the left one
    left.after = right.after;
    if (left.after != Symbol::kNone) symbols_[left.after].before = pair.left;
    if (left.before != Symbol::kNone) add_candidate(left.before);
    add_candidate(pair.left);
  }

  std::vector<Symbol>& symbols_;
  const BytePairs::Merges& merges_;
  std::priority_queue<Candidate> candidates_;
};

// Appends the ids of the bytes of a text. Returns false if a byte has no piece.
bool append_bytes(std::vector<Symbol>& symbols, std::string_view text, const Vocabulary& vocabulary) {
  const std::size_t before = symbols.size();
  for (const char byte : text) {
    const auto id = vocabulary.find(byte_piece(static_cast<unsigned char>(byte)));
    if (!id) {
      symbols.resize(before);
      return false;
    }
    symbols.push_back({*id, 1});
  }
  return true;
}

std::vector<Symbol> symbols_of(std::string_view word, const BytePairs& model, const Vocabulary& vocabulary) {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  std::size_t unknown_length = 0;  // length of unknown characters that are not in `symbols` yet
  const auto add_unknown = [&] {
    if (unknown_length == 0) return;
    const auto id = vocabulary.find(*model.unknown);
    if (!id)
      fail(ErrorCode::invalid_argument, "tokenizer: the word ", io::quote(word), " has characters without a token, and the unknown token ", io::quote(*model.unknown),
           " is not in the vocabulary");
    symbols.push_back({*id, unknown_length});
    unknown_length = 0;
  };
  std::string decorated;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t last = char_at(word, at).last, length = last - at;
    std::string_view piece = word.substr(at, length);
    const bool prefixed = at > 0 && !model.continuing_prefix.empty(), ended = last == word.size() && !model.end_suffix.empty();
    if (prefixed || ended) {
      decorated = cat(prefixed ? model.continuing_prefix : "", piece, ended ? model.end_suffix : "");
      piece = decorated;
    }
    at = last;
    if (const auto id = vocabulary.find(piece)) {
      add_unknown();
      symbols.push_back({*id, length});
    } else if (model.byte_fallback && append_bytes(symbols, piece, vocabulary)) {
      // As in the `tokenizers` package, an unknown character before these bytes is added after them.
    } else if (model.unknown) {
      if (!model.fuse_unknown) add_unknown();
      unknown_length += length;
    }
  }
  add_unknown();
  return symbols;
}

}  // namespace

void merge_pairs(std::vector<Symbol>& symbols, const BytePairs::Merges& merges) { PairMerger(symbols, merges).merge_all(); }

void append_tokens(std::vector<WordToken>& tokens, std::string_view word, const BytePairs& model, const Vocabulary& vocabulary) {
  if (model.ignore_merges) {
    if (const auto id = vocabulary.find(word)) {
      tokens.push_back({*id, 0, word.size()});
      return;
    }
  }
  std::vector<Symbol> symbols = symbols_of(word, model, vocabulary);
  merge_pairs(symbols, model.merges);
  std::size_t at = 0;
  for (const Symbol& symbol : symbols) {
    tokens.push_back({symbol.id, at, at + symbol.length});
    at += symbol.length;
  }
}

}  // namespace polyhead::models
