#include <algorithm>
#include <memory>
#include <queue>
#include <unordered_map>

#include "core/text.h"
#include "models/byte_pairs.h"

namespace polyhead::models {
namespace {

struct Word {
  std::vector<std::int64_t> tokens;
  std::int64_t count;
};

// Merges all occurrences of the pair from left to right. Returns false if there is none.
bool merge_pair(std::vector<std::int64_t>& tokens, const IdPair& pair, std::int64_t result) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool here = i + 1 < tokens.size() && IdPair(tokens[i], tokens[i + 1]) == pair;
    tokens[kept++] = here ? result : tokens[i];
    i += here;
  }
  const bool changed = kept < tokens.size();
  tokens.resize(kept);
  return changed;
}

class Trainer {
 public:
  Trainer(BytePairTokenizer::Parts& parts, std::vector<Word> words) : parts_(parts), words_(std::move(words)) {
    for (std::size_t i = 0; i < words_.size(); ++i) add_pairs(i, 1);
    for (const auto& [pair, use] : uses_) queue_.push({use.count, pair});
  }

  void run(std::int64_t vocabulary, std::int64_t min_count) {
    while (std::ssize(parts_.pieces) < vocabulary && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      if (const std::int64_t count = uses_.at(best.pair).count; count != best.count) {
        if (count > 0) queue_.push({count, best.pair});
        continue;
      }
      if (best.count < min_count) break;
      merge(best.pair);
    }
  }

 private:
  struct Use {
    std::int64_t count = 0;
    std::vector<std::size_t> words;  // all words that have the pair, and some that no longer do
  };
  struct Candidate {
    std::int64_t count;
    IdPair pair;
    bool operator<(const Candidate& other) const { return count != other.count ? count < other.count : pair > other.pair; }
  };

  void add_pairs(std::size_t index, std::int64_t sign) {
    const Word& word = words_[index];
    for (std::size_t i = 1; i < word.tokens.size(); ++i) {
      Use& use = uses_[{word.tokens[i - 1], word.tokens[i]}];
      use.count += sign * word.count;
      if (sign > 0 && (use.words.empty() || use.words.back() != index)) use.words.push_back(index);
    }
  }

  void merge(const IdPair& pair) {
    // A merge can produce a piece that existed before, and so a pair that was merged before. Such a pair keeps its first merge.
    const std::uint64_t key = BytePairs::pair_key(pair.first, pair.second);
    if (!parts_.merges.contains(key)) parts_.add_merge(pair);
    const std::int64_t result = parts_.merges.at(key).id;
    const std::vector<std::size_t> having = std::move(uses_.at(pair).words);
    std::vector<IdPair> grown;
    for (const std::size_t index : having) {
      std::vector<std::int64_t> merged = words_[index].tokens;
      if (!merge_pair(merged, pair, result)) continue;
      add_pairs(index, -1);
      words_[index].tokens = std::move(merged);
      add_pairs(index, 1);
      const auto& tokens = words_[index].tokens;
      for (std::size_t i = 1; i < tokens.size(); ++i)
        if (tokens[i - 1] == result || tokens[i] == result) grown.emplace_back(tokens[i - 1], tokens[i]);
    }
    std::ranges::sort(grown);
    grown.erase(std::unique(grown.begin(), grown.end()), grown.end());
    for (const IdPair& changed : grown) queue_.push({uses_.at(changed).count, changed});
  }

  BytePairTokenizer::Parts& parts_;
  std::vector<Word> words_;
  std::unordered_map<IdPair, Use, IdPairHash> uses_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

BytePairTokenizer BytePairTokenizer::train(std::span<const std::string> texts, const BytePairOptions& options) {
  auto parts = std::make_shared<Parts>(options.lowercase, options.special_tokens);
  if (options.vocabulary < std::ssize(parts->pieces))
    fail(ErrorCode::invalid_argument, "byte-pair tokenizer: a vocabulary of ", options.vocabulary, " is too small; ", parts->special_tokens.size(),
         " special tokens and 256 bytes are ", parts->pieces.size());
  if (options.min_count < 1) fail(ErrorCode::invalid_argument, "byte-pair tokenizer: min_count is ", options.min_count, "; at least 1 is needed");
  std::unordered_map<std::string, std::int64_t> counts;
  for (const std::string& text : texts)
    for (const PreToken& pre_token : split_text(text, options.lowercase).pre_tokens) ++counts[pre_token.bytes];
  std::vector<Word> words;
  for (const auto& [bytes, count] : counts) {
    words.push_back({{}, count});
    for (const char byte : bytes) words.back().tokens.push_back(parts->byte_id(byte));
  }
  Trainer(*parts, std::move(words)).run(options.vocabulary, options.min_count);
  return BytePairTokenizer(std::move(parts));
}

}  // namespace polyhead::models
