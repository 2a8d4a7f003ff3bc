#include "models/tokenizer/word_model.h"

#include <algorithm>

#include "core/text.h"
#include "io/json.h"
#include "models/tokenizer/utf8.h"

namespace polyhead::models {
namespace {

WordToken unknown_word(std::string_view word, const std::string& unknown, const Vocabulary& vocabulary) {
  const auto id = vocabulary.find(unknown);
  if (!id) fail(ErrorCode::invalid_argument, "tokenizer: the word ", io::quote(word), " has no token, and the unknown token ", io::quote(unknown), " is not in the vocabulary");
  return {*id, 0, word.size()};
}

}  // namespace

void append_tokens(std::vector<WordToken>& tokens, std::string_view word, const WordModel& model, const Vocabulary& vocabulary) {
  std::visit([&](const auto& kind) { append_tokens(tokens, word, kind, vocabulary); }, model);
}

void append_tokens(std::vector<WordToken>& tokens, std::string_view word, const WordLevel& model, const Vocabulary& vocabulary) {
  const auto id = vocabulary.find(word);
  tokens.push_back(id ? WordToken{*id, 0, word.size()} : unknown_word(word, model.unknown, vocabulary));
}

void append_tokens(std::vector<WordToken>& tokens, std::string_view word, const WordPiece& model, const Vocabulary& vocabulary) {
  const std::size_t before = tokens.size();
  const auto give_up = [&] {
    tokens.resize(before);
    tokens.push_back(unknown_word(word, model.unknown, vocabulary));
  };
  const auto characters = std::ranges::count_if(word, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
  if (characters > model.max_word_length) return give_up();

  const Vocabulary::Prefix continuing = vocabulary.extend(vocabulary.all(), model.continuing_prefix);
  for (std::size_t first = 0; first < word.size();) {
    Vocabulary::Prefix prefix = first == 0 ? vocabulary.all() : continuing;
    const VocabularyEntry* longest = nullptr;
    std::size_t end = first;
    for (std::size_t at = first; at < word.size() && !prefix.empty();) {
      const std::size_t last = char_at(word, at).last;
      prefix = vocabulary.extend(prefix, word.substr(at, last - at));
      at = last;
      if (const auto* found = vocabulary.exactly(prefix)) {
        longest = found;
        end = last;
      }
    }
    if (longest == nullptr) return give_up();
    tokens.push_back({longest->id, first, end});
    first = end;
  }
}

std::optional<std::int64_t> unknown_id(const WordModel& model, const Vocabulary& vocabulary) {
  if (const auto* unigram = std::get_if<Unigram>(&model)) return unigram->unknown;
  if (const auto* pairs = std::get_if<BytePairs>(&model)) return pairs->unknown ? vocabulary.find(*pairs->unknown) : std::nullopt;
  if (const auto* pieces = std::get_if<WordPiece>(&model)) return vocabulary.find(pieces->unknown);
  return vocabulary.find(std::get<WordLevel>(model).unknown);
}

std::string byte_piece(unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

}  // namespace polyhead::models
