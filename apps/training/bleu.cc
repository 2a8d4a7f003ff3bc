#include "training/bleu.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "core/text.h"
#include "training/lines.h"

namespace polyhead::training {
namespace {

constexpr std::size_t kOrders = 4;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_stop(char c) { return c == '.' || c == ','; }
bool is_symbol(char c) {  // ASCII punctuation and space, except ' , - and .
  return (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') || c == '/' || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

// Inserts spaces into pairs of neighbouring characters that match. As in a substitution by a regular expression, both characters of a match are consumed.
template <class Matches>
std::string separate(std::string_view text, const Matches& matches, std::string_view before, std::string_view between, std::string_view after) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i + 1 < text.size() && matches(text[i], text[i + 1])) {
      result.append(before).append(1, text[i]).append(between).append(1, text[i + 1]).append(after);
      ++i;
    } else {
      result += text[i];
    }
  }
  return result;
}

using Counts = std::map<std::vector<std::string>, std::int64_t>;

Counts count_ngrams(const std::vector<std::string>& tokens) {
  Counts counts;
  for (std::size_t order = 1; order <= kOrders; ++order)
    for (std::size_t i = 0; i + order <= tokens.size(); ++i) {
      const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(i);
      ++counts[{first, first + static_cast<std::ptrdiff_t>(order)}];
    }
  return counts;
}

}  // namespace

std::vector<std::string> tokenize_13a(std::string_view text) {
  std::string_view end = text;  // white space at the end is removed before the rules are applied
  for (std::string_view rest = text; !rest.empty();) {
    if (!is_white_space(take_character(rest))) end = rest;
  }
  std::string line(text.substr(0, end.data() == text.data() ? 0 : static_cast<std::size_t>(end.data() - text.data())));
  for (const auto& [from, to] : {std::pair<std::string_view, std::string_view>{"<skipped>", ""}, {"-\n", ""}, {"\n", " "}, {"&quot;", "\""}, {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}})
    replace_all(line, from, to);
  std::string spaced = " ";
  for (const char c : line) is_symbol(c) ? spaced.append({' ', c, ' '}) : spaced.append(1, c);
  // The characters compared here are bytes. That is correct, because no byte of a multi-byte character is an ASCII digit.
  spaced = separate(spaced + ' ', [](char a, char b) { return !is_digit(a) && is_stop(b); }, "", " ", " ");
  spaced = separate(spaced, [](char a, char b) { return is_stop(a) && !is_digit(b); }, " ", " ", "");
  spaced = separate(spaced, [](char a, char b) { return is_digit(a) && b == '-'; }, "", " ", " ");
  std::vector<std::string> tokens;
  for (const auto token : split_at_white_space(spaced)) tokens.emplace_back(token);
  return tokens;
}

double corpus_bleu(std::span<const std::string> hypotheses, std::span<const std::vector<std::string>> references) {
  require(hypotheses.size() == references.size(), "corpus_bleu: ", hypotheses.size(), " hypotheses for ", references.size(), " sets of references");
  std::array<std::int64_t, kOrders> correct{}, total{};
  std::int64_t length = 0, reference_length = 0;
  for (std::size_t i = 0; i < hypotheses.size(); ++i) {
    require(!references[i].empty(), "corpus_bleu: sentence ", i, " has no reference");
    const auto tokens = tokenize_13a(hypotheses[i]);
    const auto size = std::ssize(tokens);
    Counts most;  // for each n-gram, its largest count in one reference
    std::int64_t closest = -1;
    for (const std::string& reference : references[i]) {
      const auto words = tokenize_13a(reference);
      const auto far = [&](std::int64_t other) { return std::pair(std::abs(other - size), other); };  // if two lengths are equally close, the shorter one is chosen
      if (closest < 0 || far(std::ssize(words)) < far(closest)) closest = std::ssize(words);
      for (const auto& [ngram, count] : count_ngrams(words)) most[ngram] = std::max(most[ngram], count);
    }
    for (const auto& [ngram, count] : count_ngrams(tokens)) {
      total[ngram.size() - 1] += count;
      if (const auto found = most.find(ngram); found != most.end()) correct[ngram.size() - 1] += std::min(count, found->second);
    }
    length += size;
    reference_length += closest;
  }
  // If there are no 4-grams, or nothing matches, sacrebleu returns 0 or exp(-1e9 / 4), which is 0 in float64.
  if (total.back() == 0 || std::ranges::all_of(correct, [](auto count) { return count == 0; })) return 0;
  double logs = 0, smooth = 1;
  for (std::size_t order = 0; order < kOrders; ++order)
    logs += std::log(correct[order] > 0 ? 100.0 * static_cast<double>(correct[order]) / static_cast<double>(total[order])
                                        : 100.0 / ((smooth *= 2) * static_cast<double>(total[order])));
  const double penalty = length < reference_length ? std::exp(1 - static_cast<double>(reference_length) / static_cast<double>(length)) : 1;
  return penalty * std::exp(logs / kOrders);
}

}  // namespace polyhead::training
