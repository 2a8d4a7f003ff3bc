#include "models/added_tokens.h"

#include <algorithm>

namespace polyhead::models {

AddedTokenFinder::AddedTokenFinder(std::vector<std::pair<const AddedToken*, std::vector<Char>>> tokens) {
  for (auto& [token, content] : tokens) {
    if (content.empty()) continue;
    const char32_t first = content.front().code;
    by_first_[first].push_back({token, std::move(content)});
  }
  for (auto& [first, entries] : by_first_)
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.content.size() > b.content.size(); });
}

const AddedTokenFinder::Entry* AddedTokenFinder::match_at(std::span<const Char> text, std::size_t at) const {
  const auto entries = by_first_.find(text[at].code);
  if (entries == by_first_.end()) return nullptr;
  for (const Entry& entry : entries->second) {
    if (entry.content.size() > text.size() - at) continue;
    const auto same = [](const Char& a, const Char& b) { return a.code == b.code; };
    if (std::equal(entry.content.begin(), entry.content.end(), text.begin() + static_cast<std::ptrdiff_t>(at), same)) return &entry;
  }
  return nullptr;
}

std::vector<Section> AddedTokenFinder::split(std::span<const Char> text) const {
  std::vector<Section> sections;
  std::size_t done = 0;  // end of the text that is already in `sections`
  const auto add_text = [&](std::size_t last) {
    if (last > done) sections.push_back({nullptr, text.subspan(done, last - done)});
  };
  for (std::size_t at = 0; at < text.size();) {
    const Entry* entry = match_at(text, at);
    if (entry == nullptr) {
      ++at;
      continue;
    }
    std::size_t first = at;
    std::size_t last = at + entry->content.size();
    at = last;
    const bool touches_word =
        (first > 0 && is_word_character(text[first - 1].code)) || (last < text.size() && is_word_character(text[last].code));
    if (entry->token->single_word && touches_word) continue;
    if (entry->token->strip_left)
      while (first > done && is_white_space(text[first - 1].code)) --first;
    if (entry->token->strip_right)
      while (last < text.size() && is_white_space(text[last].code)) ++last;
    add_text(first);
    sections.push_back({entry->token, text.subspan(first, last - first)});
    done = last;
    at = last;
  }
  add_text(text.size());
  return sections;
}

}  // namespace polyhead::models
