#include "training/summary_baselines.h"

#include <algorithm>
#include <array>

#include "core/text.h"
#include "training/bag_of_words.h"
#include "training/rouge.h"

namespace polyhead::training {

std::int64_t cue_phrase_sentence(std::span<const std::string> sentences) {
  static constexpr std::array<std::string_view, 14> kCues{"in this paper", "in this work", "this paper", "we propose", "we present", "we introduce", "we develop",
                                                          "we describe", "we show", "we demonstrate", "we study", "we investigate", "we explore", "we provide"};
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    std::string text = " ";
    for (const std::string& word : words_and_signs(sentences[i])) text += word + ' ';
    if (std::ranges::any_of(kCues, [&](std::string_view cue) { return text.find(cat(' ', cue, ' ')) != text.npos; })) return static_cast<std::int64_t>(i);
  }
  return 0;
}

double mean_rouge_1(std::span<const Abstract> abstracts, std::span<const std::int64_t> chosen) {
  require(abstracts.size() == chosen.size() && !chosen.empty(), "mean_rouge_1: ", chosen.size(), " choices for ", abstracts.size(), " abstracts; there must be equally many, and at least one");
  double sum = 0;
  for (std::size_t i = 0; i < abstracts.size(); ++i) {
    require(chosen[i] >= 0 && chosen[i] < std::ssize(abstracts[i].sentences), "mean_rouge_1: sentence ", chosen[i], " of ", abstracts[i].sentences.size());
    sum += rouge_1(abstracts[i].sentences[static_cast<std::size_t>(chosen[i])], abstracts[i].targets);
  }
  return 100 * sum / static_cast<double>(abstracts.size());
}

}  // namespace polyhead::training
