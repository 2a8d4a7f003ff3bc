#include <algorithm>
#include <cmath>

#include "models/byte_pairs.h"
#include "polyhead/models/text_classifier.h"

namespace polyhead::models {
namespace {

std::string first_characters(std::string_view word, std::int64_t count) {
  std::size_t end = 0;
  for (; end < word.size(); ++end)
    if ((static_cast<unsigned char>(word[end]) & 0xC0) != 0x80 && count-- == 0) break;
  return std::string(word.substr(0, end));
}

}  // namespace

TextTerms terms_of(std::string_view text) {
  constexpr std::int64_t kShortStart = 4, kLongStart = 6;
  constexpr double kScale = 10;
  std::vector<std::string> words;
  for (const PreToken& part : split_text(text, true).pre_tokens) {
    std::string word = part.bytes;
    std::erase_if(word, [](char c) { return c == kWordMark || c == ' ' || (c >= '\t' && c <= '\r'); });
    if (part.word >= 0) words.push_back(std::move(word));
  }
  TextTerms result{.terms = words, .share = kScale / std::sqrt(static_cast<double>(std::max<std::size_t>(words.size(), 1)))};
  for (std::size_t i = 0; i < words.size(); ++i) {
    result.terms.push_back(first_characters(words[i], kShortStart) + '*');
    const std::string start = first_characters(words[i], kLongStart);
    if (start != words[i]) result.terms.push_back(start + '*');
    if (i >= 1) result.terms.push_back(words[i - 1] + ' ' + words[i]);
    if (i >= 2) result.terms.push_back(words[i - 2] + std::string(kTermGap) + words[i]);
  }
  std::ranges::sort(result.terms);
  result.terms.erase(std::unique(result.terms.begin(), result.terms.end()), result.terms.end());
  return result;
}

}  // namespace polyhead::models
