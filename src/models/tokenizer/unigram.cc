// Viterbi search of a unigram language model.
#include <algorithm>

#include "core/text.h"
#include "io/json.h"
#include "models/tokenizer/utf8.h"
#include "models/tokenizer/word_model.h"

namespace polyhead::models {
namespace {

constexpr double kUnknownPenalty = 10;  // an unknown character scores this much below the lowest score of any piece
constexpr std::size_t kNoPiece = static_cast<std::size_t>(-1);

// The best split of the bytes before a place in the word: its score and its last token.
struct Best {
  double score = 0;
  std::size_t first = kNoPiece;  // where the last token begins
  std::int64_t id = 0;
};

[[noreturn]] void fail_unknown(std::string_view word) {
  fail(ErrorCode::invalid_argument, "tokenizer: the word ", io::quote(word), " has characters without a token, and the model has no unk_id");
}

std::vector<Best> best_splits(std::string_view word, const Unigram& model, const Vocabulary& vocabulary) {
  std::vector<Best> best(word.size() + 1);
  const auto offer = [&](std::size_t first, std::size_t last, double score, std::int64_t id) {
    const double sum = score + best[first].score;
    if (best[last].first == kNoPiece || sum > best[last].score) best[last] = {sum, first, id};
  };
  for (std::size_t first = 0; first < word.size();) {
    const std::size_t next = char_at(word, first).last;
    bool has_single = false;
    Vocabulary::Prefix prefix = vocabulary.all();
    for (std::size_t at = first; at < word.size() && !prefix.empty(); ++at) {
      prefix = vocabulary.extend(prefix, word[at]);
      const auto* entry = vocabulary.exactly(prefix);
      if (entry == nullptr) continue;
      offer(first, at + 1, model.scores[static_cast<std::size_t>(entry->id)], entry->id);
      has_single = has_single || at + 1 == next;
    }
    if (!has_single) {
      if (!model.unknown) fail_unknown(word);
      offer(first, next, model.least_score - kUnknownPenalty, *model.unknown);
    }
    first = next;
  }
  return best;
}

}  // namespace

void append_tokens(std::vector<WordToken>& tokens, std::string_view word, const Unigram& model, const Vocabulary& vocabulary) {
  const std::vector<Best> best = best_splits(word, model, vocabulary);
  std::vector<WordToken> path;  // the tokens of the best split, from the last to the first
  for (std::size_t last = word.size(); last > 0;) {
    const Best& token = best[last];
    const bool unknown = model.unknown && token.id == *model.unknown;
    if (unknown && !path.empty() && path.back().id == *model.unknown)
      path.back().first = token.first;
    else
      path.push_back({token.id, token.first, last});
    last = token.first;
  }
  std::ranges::reverse(path);
  for (const WordToken& token : path) {
    const std::string_view text = word.substr(token.first, token.last - token.first);
    const bool unknown = model.unknown && token.id == *model.unknown;
    if (!unknown) {
      tokens.push_back(token);
      continue;
    }
    // Neighbouring unknown characters are joined and may then be a piece. If not, they may become bytes, each of which has the span of all these characters.
    if (const auto id = vocabulary.find(text)) {
      tokens.push_back({*id, token.first, token.last});
      continue;
    }
    const std::size_t before = tokens.size();
    bool all = model.byte_fallback;
    for (std::size_t i = 0; all && i < text.size(); ++i) {
      const auto id = vocabulary.find(byte_piece(static_cast<unsigned char>(text[i])));
      all = id.has_value();
      if (id) tokens.push_back({*id, token.first, token.last});
    }
    if (all) continue;
    tokens.resize(before);
    tokens.push_back(token);
  }
}

}  // namespace polyhead::models
