// Splits text into words: BERT's normaliser, then the split at white space and punctuation.
#pragma once

#include <span>
#include <vector>

#include "models/unicode.h"

namespace polyhead::models {

std::vector<Char> normalize(std::span<const Char> text, const TokenizerOptions& options);

// Words end at white space, which is dropped; each punctuation character is a word. The words are views of `text`.
std::vector<std::span<const Char>> split_words(std::span<const Char> text);

}  // namespace polyhead::models
