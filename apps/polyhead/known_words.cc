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
  return unknown_among(words, [&](std::string word) {
    // the grammar's list has small letters, but the first word of a sentence has a capital
    if (!word.empty() && word[0] >= 'A' && word[0] <= 'Z' && word != "I") word[0] = static_cast<char>(word[0] | 32);
    return std::ranges::binary_search(kGrammarWords, std::string_view(word));
  });
}

}  // namespace polyhead::app
