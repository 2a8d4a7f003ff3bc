// ROUGE-1 (Lin 2004) as the package rouge-score computes it with its stemmer. The scores of SciTLDR (Cachola et al. 2020) come from files2rouge, which also
// stems, and use the best-matching summary. For a few words the Perl stemmer of files2rouge differs from Porter's stemmer.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead::training {

// Porter's stemmer (1980) with the extensions that NLTK has by default, for a lowercase ASCII word.
std::string porter_stem(std::string word);

// Runs of a-z and 0-9 in lower case; words of more than 3 characters are stemmed.
std::vector<std::string> rouge_tokens(std::string_view text);

// The F score of ROUGE-1, from 0 to 1. It is 0 if either text has no token.
double rouge_1(std::string_view summary, std::string_view target);
// The largest ROUGE-1 of the summary over all targets.
double rouge_1(std::string_view summary, std::span<const std::string> targets);

}  // namespace polyhead::training
