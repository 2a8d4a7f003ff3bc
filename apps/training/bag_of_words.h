// The baseline of rated texts: ridge regression on words and pairs of neighbouring words.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "training/ridge.h"

namespace polyhead::training {

// Lowercase words (letters, digits, apostrophes) and single punctuation characters, in the order of the text.
std::vector<std::string> words_and_signs(std::string_view text);

struct BagOfWordsConfig {
  std::int64_t min_count = 1;  // words and pairs that fewer texts contain are ignored
  RidgeConfig ridge{};
};

// Represents a text as a vector of length 1. Before it is scaled, the element of each term of the text is idf = 1 + ln((1 + texts) / (1 + texts with the
// term)).
class BagOfWords {
 public:
  BagOfWords(std::span<const std::string> texts, std::span<const double> ratings, const BagOfWordsConfig& config = {});
  double predict(std::string_view text) const;
  std::int64_t terms() const { return std::ssize(ridge_.parameters); }

 private:
  SparseRow row_of(std::string_view text) const;

  std::map<std::string, std::size_t, std::less<>> index_;
  std::vector<double> idf_;
  Ridge ridge_;
};

}  // namespace polyhead::training
