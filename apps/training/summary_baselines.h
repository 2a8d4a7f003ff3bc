// A baseline that chooses a sentence of the text as its summary. (The other baseline is the first sentence.)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "training/data.h"

namespace polyhead::training {

// The first sentence with a phrase such as "we propose" or "in this paper"; 0 if there is none.
std::int64_t cue_phrase_sentence(std::span<const std::string> sentences);

// 100 times the mean ROUGE-1 F of the chosen sentences.
double mean_rouge_1(std::span<const Abstract> abstracts, std::span<const std::int64_t> chosen);

}  // namespace polyhead::training
