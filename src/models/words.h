// Text to words: BERT's normaliser and the split at white space and punctuation.
#pragma once

#include <span>
#include <vector>

#include "models/unicode.h"

namespace polyhead::models {

std::vector<Char> normalize(std::span<const Char> text, const TokenizerOptions& options);

// Non-empty runs without white space; each punctuation character is a word. The spans refer to `text`.
std::vector<std::span<const Char>> split_words(std::span<const Char> text);

}  // namespace polyhead::models
