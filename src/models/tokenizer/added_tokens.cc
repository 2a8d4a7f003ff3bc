#include "models/tokenizer/added_tokens.h"

#include <algorithm>

#include "core/text.h"
#include "io/json.h"
#include "models/tokenizer/char_class.h"
#include "models/tokenizer/utf8.h"

namespace polyhead::models {
namespace {

Vocabulary contents_of(std::vector<std::pair<const AddedToken*, std::string>>& tokens) {
  std::vector<VocabularyEntry> entries;
  for (auto& [token, content] : tokens) {
    if (content.empty()) fail(ErrorCode::format, "added_tokens: ", io::quote(token->content), " is normalised to nothing");
    entries.push_back({std::move(content), static_cast<std::int64_t>(entries.size())});
  }
  Vocabulary contents(std::move(entries), "added_tokens");
  const auto& sorted = contents.entries();
  const auto twice = std::ranges::adjacent_find(sorted, {}, &VocabularyEntry::piece);
  if (twice != sorted.end()) fail(ErrorCode::format, "added_tokens has two tokens that are found as ", io::quote(twice->piece));
  return contents;
}

bool touches_word(std::string_view text, std::size_t first, std::size_t last) {
  return (first > 0 && is_in(CharClass::word, char_before(text, first).code)) || (last < text.size() && is_in(CharClass::word, char_at(text, last).code));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<std::pair<const AddedToken*, std::string>> tokens) : contents_(contents_of(tokens)) {
  for (const auto& [token, content] : tokens) tokens_.push_back(token);
}

std::vector<Section> AddedTokenFinder::split(std::string_view text) const {
  std::vector<Section> sections;
  std::size_t done = 0;  // end of the last element of `sections`, 0 if there is none
  for (std::size_t at = 0; at < text.size() && !tokens_.empty();) {
    Vocabulary::Prefix prefix = contents_.all();
    const VocabularyEntry* longest = nullptr;
    std::size_t last = at;
    for (std::size_t i = at; i < text.size(); ++i) {
      prefix = contents_.extend(prefix, text[i]);
      if (prefix.empty()) break;
      if (const auto* found = contents_.exactly(prefix)) {
        longest = found;
        last = i + 1;
      }
    }
    if (longest == nullptr) {
      ++at;
      continue;
    }
    const AddedToken* token = tokens_[static_cast<std::size_t>(longest->id)];
    std::size_t first = at;
    at = last;  // the next token may begin inside the white space that this one takes
    if (token->single_word && touches_word(text, first, last)) continue;
    if (token->strip_left) {
      while (first > done) {
        const auto [code, before] = char_before(text, first);
        if (!is_in(CharClass::white_space, code)) break;
        first = before;
      }
      first = std::max(first, done);
    }
    while (token->strip_right && last < text.size()) {
      const auto [code, next] = char_at(text, last);
      if (!is_in(CharClass::white_space, code)) break;
      last = next;
    }
    if (first > last) continue;  // this token ends inside the white space that the last token took
    if (done < first) sections.push_back({nullptr, done, first});
    sections.push_back({token, first, last});
    done = last;
  }
  if (done < text.size()) sections.push_back({nullptr, done, text.size()});
  return sections;
}

}  // namespace polyhead::models
