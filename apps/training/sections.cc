#include "training/sections.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "training/bag_of_words.h"

namespace polyhead::training {
namespace {

using Words = std::vector<std::string>;

bool speaks_of_authors(const Words& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "we" || words[i] == "our") return true;
    if (i > 0 && words[i - 1] == "this" && (words[i] == "paper" || words[i] == "work" || words[i] == "article")) return true;
  }
  return false;
}

bool tells_a_result(const Words& words) {
  static constexpr std::array<std::string_view, 11> kStarts{"experiment", "empiric", "result", "outperform", "achiev", "improv", "demonstrat", "show", "evaluat", "benchmark", "accura"};
  return std::ranges::any_of(words, [](std::string_view word) { return std::ranges::any_of(kStarts, [&](std::string_view start) { return word.starts_with(start); }); });
}

}  // namespace

std::vector<std::string> sections_of_heads(std::int64_t heads) {
  return {kSectionNames.begin(), kSectionNames.begin() + std::min(heads, std::ssize(kSectionNames))};
}

std::vector<Section> sections_of(std::span<const std::string> sentences) {
  std::vector<Section> sections;
  bool own = false;
  for (const std::string& sentence : sentences) {
    const Words words = words_and_signs(sentence);
    own = own || speaks_of_authors(words);
    sections.push_back(!own ? Section::background : tells_a_result(words) ? Section::result : Section::method);
  }
  if (!own) sections.clear();
  return sections;
}

double section_loss(const Tensor& p, std::span<const std::vector<Section>> sections, double weight, Tensor& d_p) {
  const std::int64_t texts = p.extent(0), heads = p.extent(1), longest = p.extent(3);
  double loss = 0;
  for (std::int64_t b = 0; b < texts; ++b)
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::vector<Section>& of_text = sections[static_cast<std::size_t>(b)];
      const std::int64_t count = std::ssize(of_text);
      std::vector<std::int64_t> wanted;
      for (std::int64_t s = 0; s < count; ++s)
        if (of_text[static_cast<std::size_t>(s)] == static_cast<Section>(head)) wanted.push_back(s);
      if (wanted.empty() || std::ssize(wanted) == count) continue;
      const double share = weight / static_cast<double>(texts * count);
      for (std::int64_t t = 0; t < count; ++t) {
        const std::int64_t row = ((b * heads + head) * longest + t) * longest;
        double sum = 1e-6;  // keeps the loss finite if all weights underflow to 0
        for (const std::int64_t s : wanted) sum += static_cast<double>(p.data<float>()[row + s]);
        loss -= share * std::log(sum);
        for (const std::int64_t s : wanted) d_p.data<float>()[row + s] -= static_cast<float>(share / sum);
      }
    }
  return loss;
}

}  // namespace polyhead::training
