#include "known_words.h"

#include <algorithm>
#include <string_view>

#include "grammar_words.inc"  // kGrammarWords, a sorted list; cmake/grammar_words.cmake makes this file from grammar_words.txt

namespace polyhead::app {
namespace {

template <class Knows>
std::vector<std::string> unknown_among(const std::vector<std::string>& words, const Knows& knows) {
  std::vector<std::string> unknown;
  for (const std::string& word : words)
    if (!knows(word) && std::ranges::find(unknown, word) == unknown.end()) unknown.push_back(word);
  return unknown;
}

}  // namespace

std::vector<std::string> words_without_score(const models::TextModel& model, const std::vector<std::string>& words) {
  return unknown_among(words, [&](const std::string& word) {
    const bool is_sign = std::ranges::all_of(word, [](char c) { return static_cast<unsigned char>(c) < 0x80 && !(c >= '0' && c <= '9') && !((c | 32) >= 'a' && (c | 32) <= 'z'); });
    if (is_sign) return true;
    // terms that the model may score: the word itself, and beginnings of it such as "abcd*"
    const std::vector<std::string> terms = models::terms_of(word).terms;
    return std::ranges::any_of(terms, [&](const std::string& term) { return !term.ends_with('*') && std::ranges::binary_search(model.terms, term); });
  });
}

std::vector<std::string> words_outside_grammar(const std::vector<std::string>& words) {
  const auto known = [](std::string_view word) { return std::ranges::binary_search(kGrammarWords, word); };
  return unknown_among(words, [&](std::string word) {
    if (known(word)) return true;
    if (!word.empty() && word[0] >= 'A' && word[0] <= 'Z') word[0] = static_cast<char>(word[0] | 32);  // the first word of a sentence has a capital
    return known(word);
  });
}

MarkedTranslation mark_unknown_words(const models::Translation& answer, const std::string& source, const std::vector<std::string>& unknown) {
  const std::vector<std::string> sources = answer.source.words_in(source);
  MarkedTranslation marked{.text = {}, .invented = std::vector<bool>(answer.alignment.size()), .omitted = unknown};
  std::int64_t shown = -1;  // the source word of the mark that `text` ends with; -1: it ends with a word of the model
  std::size_t end = 0;      // first byte of the model's translation that `text` does not have
  for (std::size_t j = 0; j < answer.alignment.size(); ++j) {
    const auto [first, last] = answer.target.word_spans[j];
    const std::int64_t from = answer.alignment[j];
    marked.invented[j] = from >= 0 && std::ranges::find(unknown, sources[static_cast<std::size_t>(from)]) != unknown.end();
    if (!marked.invented[j] || from != shown) {
      marked.text.append(answer.text, end, (marked.invented[j] ? first : last) - end);
      if (marked.invented[j]) marked.text += "[" + sources[static_cast<std::size_t>(from)] + "]", std::erase(marked.omitted, sources[static_cast<std::size_t>(from)]);
    }
    shown = marked.invented[j] ? from : -1;
    end = last;
  }
  marked.text.append(answer.text, end);
  return marked;
}

}  // namespace polyhead::app
