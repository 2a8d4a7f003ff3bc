#include "models/words.h"

#include <cstddef>
#include <utility>

namespace polyhead::models {
namespace {

std::vector<Char> clean(std::span<const Char> text) {
  std::vector<Char> result;
  result.reserve(text.size());
  for (const Char& c : text) {
    if (c.code == 0 || c.code == 0xFFFD || is_control(c.code)) continue;
    result.push_back({is_white_space(c.code) ? U' ' : c.code, c.span});
  }
  return result;
}

std::vector<Char> isolate_cjk(std::span<const Char> text) {
  std::vector<Char> result;
  result.reserve(text.size());
  for (const Char& c : text) {
    if (!is_cjk_ideograph(c.code)) {
      result.push_back(c);
      continue;
    }
    result.push_back({U' ', {c.span.first, c.span.first}});
    result.push_back(c);
    result.push_back({U' ', {c.span.last, c.span.last}});
  }
  return result;
}

}  // namespace

std::vector<Char> normalize(std::span<const Char> text, const TokenizerOptions& options) {
  std::vector<Char> chars = options.clean_text ? clean(text) : std::vector<Char>(text.begin(), text.end());
  if (options.isolate_cjk) chars = isolate_cjk(chars);
  if (options.strip_accents.value_or(options.lowercase)) {
    chars = decompose(chars);
    std::erase_if(chars, [](const Char& c) { return is_nonspacing_mark(c.code); });
  }
  if (options.lowercase) {
    std::vector<Char> lower;
    lower.reserve(chars.size());
    for (const Char& c : chars) append_lowercase(lower, c);
    chars = std::move(lower);
  }
  return chars;
}

std::vector<std::span<const Char>> split_words(std::span<const Char> text) {
  std::vector<std::span<const Char>> words;
  std::size_t first = 0;
  const auto end_word = [&](std::size_t last) {
    if (last > first) words.push_back(text.subspan(first, last - first));
    first = last + 1;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool punctuation = is_punctuation(text[i].code);
    if (!punctuation && !is_white_space(text[i].code)) continue;
    end_word(i);
    if (punctuation) words.push_back(text.subspan(i, 1));
  }
  end_word(text.size());
  return words;
}

}  // namespace polyhead::models
