#include "training/rouge.h"

#include <utf8proc.h>

#include <algorithm>
#include <map>
#include <optional>

#include "training/lines.h"

namespace polyhead::training {
namespace {

bool is_consonant(std::string_view word, std::size_t i) {
  if (word[i] == 'y') return i == 0 || !is_consonant(word, i - 1);
  return std::string_view("aeiou").find(word[i]) == std::string_view::npos;
}

// Porter's m: the number of places where a consonant follows a vowel.
int measure(std::string_view stem) {
  int count = 0;
  for (std::size_t i = 1; i < stem.size(); ++i) count += is_consonant(stem, i) && !is_consonant(stem, i - 1);
  return count;
}

bool has_vowel(std::string_view stem) {
  for (std::size_t i = 0; i < stem.size(); ++i)
    if (!is_consonant(stem, i)) return true;
  return false;
}

bool ends_short(std::string_view word) {  // Porter's condition *o (consonant, vowel, consonant); also true for a word of two letters, vowel and consonant
  const std::size_t n = word.size();
  if (n == 2) return !is_consonant(word, 0) && is_consonant(word, 1);
  return n >= 3 && is_consonant(word, n - 3) && !is_consonant(word, n - 2) && is_consonant(word, n - 1) && std::string_view("wxy").find(word[n - 1]) == std::string_view::npos;
}

struct Rule {
  std::string_view suffix, replacement;
};

// Applies the first rule whose suffix matches, if the measure m of the remaining stem is greater than `least`.
std::optional<std::string> apply(std::string_view word, std::span<const Rule> rules, int least) {
  for (const auto& [suffix, replacement] : rules) {
    if (!word.ends_with(suffix)) continue;
    const std::string_view stem = word.substr(0, word.size() - suffix.size());
    bool holds = measure(suffix == "logi" ? word.substr(0, word.size() - 3) : stem) > least;
    if (suffix == "ion") holds = holds && (stem.ends_with('s') || stem.ends_with('t'));
    return holds ? std::optional(std::string(stem).append(replacement)) : std::nullopt;
  }
  return std::nullopt;
}

std::string without_end(std::string_view word, std::size_t count, std::string_view added = "") { return std::string(word.substr(0, word.size() - count)).append(added); }

std::string plural(std::string_view word) {  // step 1a
  if (word.ends_with("ies")) return without_end(word, word.size() == 4 ? 1 : 2);
  if (word.ends_with("sses")) return without_end(word, 2);
  return without_end(word, word.ends_with('s') && !word.ends_with("ss") ? 1 : 0);
}

std::string past(std::string_view word) {  // step 1b
  if (word.ends_with("ied")) return without_end(word, word.size() == 4 ? 1 : 2);
  if (word.ends_with("eed")) return without_end(word, measure(word.substr(0, word.size() - 3)) > 0 ? 1 : 0);
  const std::size_t cut = word.ends_with("ed") ? 2 : word.ends_with("ing") ? 3 : 0;
  const std::string_view stem = word.substr(0, word.size() - cut);
  if (cut == 0 || !has_vowel(stem)) return std::string(word);
  if (stem.ends_with("at") || stem.ends_with("bl") || stem.ends_with("iz")) return without_end(stem, 0, "e");
  const std::size_t n = stem.size();
  if (n >= 2 && stem[n - 1] == stem[n - 2] && is_consonant(stem, n - 1)) return without_end(stem, std::string_view("lsz").find(stem[n - 1]) == std::string_view::npos ? 1 : 0);
  return without_end(stem, 0, measure(stem) == 1 && ends_short(stem) ? "e" : "");
}

std::string derived(std::string word) {  // step 2
  static constexpr Rule kRules[] = {{"ational", "ate"}, {"tional", "tion"}, {"enci", "ence"}, {"anci", "ance"}, {"izer", "ize"}, {"bli", "ble"}, {"alli", "al"},
                                    {"entli", "ent"}, {"eli", "e"}, {"ousli", "ous"}, {"ization", "ize"}, {"ation", "ate"}, {"ator", "ate"}, {"alism", "al"},
                                    {"iveness", "ive"}, {"fulness", "ful"}, {"ousness", "ous"}, {"aliti", "al"}, {"iviti", "ive"}, {"biliti", "ble"}, {"fulli", "ful"}, {"logi", "log"}};
  if (word.ends_with("alli") && measure(std::string_view(word).substr(0, word.size() - 4)) > 0) return derived(without_end(word, 2));
  return apply(word, kRules, 0).value_or(word);
}

}  // namespace

std::string porter_stem(std::string word) {
  static const std::map<std::string_view, std::string_view> kIrregular{
      {"skies", "sky"}, {"sky", "sky"}, {"dying", "die"}, {"lying", "lie"}, {"tying", "tie"}, {"news", "news"}, {"innings", "inning"}, {"inning", "inning"}, {"outings", "outing"},
      {"outing", "outing"}, {"cannings", "canning"}, {"canning", "canning"}, {"howe", "howe"}, {"proceed", "proceed"}, {"exceed", "exceed"}, {"succeed", "succeed"}};
  static constexpr Rule kThird[] = {{"icate", "ic"}, {"ative", ""}, {"alize", "al"}, {"iciti", "ic"}, {"ical", "ic"}, {"ful", ""}, {"ness", ""}};
  static constexpr Rule kFourth[] = {{"al", ""}, {"ance", ""}, {"ence", ""}, {"er", ""}, {"ic", ""}, {"able", ""}, {"ible", ""}, {"ant", ""}, {"ement", ""}, {"ment", ""},
                                     {"ent", ""}, {"ion", ""}, {"ou", ""}, {"ism", ""}, {"ate", ""}, {"iti", ""}, {"ous", ""}, {"ive", ""}, {"ize", ""}};
  if (const auto found = kIrregular.find(word); found != kIrregular.end()) return std::string(found->second);
  if (word.size() <= 2) return word;
  word = past(plural(word));
  if (word.size() > 2 && word.ends_with('y') && is_consonant(word, word.size() - 2)) word.back() = 'i';  // step 1c
  word = derived(word);
  word = apply(word, kThird, 0).value_or(word);
  word = apply(word, kFourth, 1).value_or(word);
  if (word.ends_with('e')) {  // step 5a
    const std::string stem = without_end(word, 1);
    if (const int m = measure(stem); m > 1 || (m == 1 && !ends_short(stem))) word = stem;
  }
  if (word.ends_with("ll") && measure(without_end(word, 1)) > 1) word.pop_back();  // step 5b
  return word;
}

std::vector<std::string> rouge_tokens(std::string_view text) {
  std::vector<std::string> tokens;
  std::string word;
  const auto close = [&] {
    if (!word.empty()) tokens.push_back(word.size() > 3 ? porter_stem(word) : word);
    word.clear();
  };
  while (!text.empty()) {
    const char32_t code = take_character(text);
    // As in Python, U+0130 becomes an i and a combining dot, which ends the word. The Kelvin sign becomes a k.
    const auto lower = code == 0x130 ? U'i' : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
    if ((lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9'))
      word += static_cast<char>(lower);
    else
      close();
    if (code == 0x130) close();
  }
  close();
  return tokens;
}

double rouge_1(std::string_view summary, std::string_view target) {
  const auto words = rouge_tokens(summary), wanted = rouge_tokens(target);
  std::map<std::string_view, std::int64_t> left;
  for (const auto& word : wanted) ++left[word];
  const auto common = std::ranges::count_if(words, [&](const auto& word) {
    const auto found = left.find(word);
    return found != left.end() && found->second-- > 0;
  });
  // 2 P R / (P + R) with P = common / words and R = common / wanted
  return common == 0 ? 0 : 2 * static_cast<double>(common) / static_cast<double>(words.size() + wanted.size());
}

double rouge_1(std::string_view summary, std::span<const std::string> targets) {
  double best = 0;
  for (const std::string& target : targets) best = std::max(best, rouge_1(summary, target));
  return best;
}

}  // namespace polyhead::training
