// Corpus BLEU (Papineni et al. 2002) exactly as sacrebleu's default computes it: tokenizer 13a, case-sensitive, orders 1 to 4, exponential
// smoothing, the closest reference length (nrefs:N|case:mixed|eff:no|tok:13a|smooth:exp).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead::training {

std::vector<std::string> tokenize_13a(std::string_view text);

// 0 to 100. references[i]: one or more translations of the sentence that hypotheses[i] translates.
double corpus_bleu(std::span<const std::string> hypotheses, std::span<const std::vector<std::string>> references);

}  // namespace polyhead::training
