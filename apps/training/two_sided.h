// Makes texts "A, but B" of a positive and a negative part, and measures how much of two pooling heads' attention is on the part that each should read.
#pragma once

#include "polyhead/models/text_classifier.h"
#include "training/classified_texts.h"

namespace polyhead::training {

// The indices of two pooling heads. Training with ratings guides one to the positive part of a text, the other to the negative part.
inline constexpr std::int64_t kPositiveHead = 0, kNegativeHead = 1;

// "A, but B" or "B, but A", made from a positive text A and a negative text B.
struct TwoSidedText {
  std::string text;
  models::ByteSpan positive, negative;
  double rating = 0;  // the mean of the ratings of A and B
};

inline bool inside(models::ByteSpan token, models::ByteSpan part) { return token.first >= part.first && token.last <= part.last; }

// Short texts with a clear rating. Any positive text joined with any negative text is short enough for the model.
struct Sides {
  std::vector<std::size_t> positive, negative;  // indices of the positive and of the negative texts
  Sides() = default;
  // Finds the texts of at most `words` words whose rating is at least `least` (positive) or at most -`least` (negative). Finds none if the data has labels.
  Sides(const models::TextModel& model, const ClassifiedTexts& data, double least, std::int64_t words);
  explicit operator bool() const { return positive.size() > 1 && negative.size() > 1; }
  // Joins a random positive text and a random negative text. any_joint: true if other conjunctions or punctuation than ", but " may join them.
  TwoSidedText draw(const ClassifiedTexts& data, std::uint64_t seed, bool any_joint) const;
};

// `count` texts, each made from a short text with a rating of at least 1 and one with a rating of at most -1. Empty if there are fewer than two positive or
// two negative texts.
std::vector<TwoSidedText> two_sided_texts(const models::TextModel& model, const ClassifiedTexts& data, std::int64_t count, std::uint64_t seed);

struct Halves {
  // both: number of texts in which each of the two heads gives at least 0.45 of its attention to the part that it should read.
  std::int64_t texts = 0, both = 0;
  double positive = 0, negative = 0;     // for each head, the mean attention to the part that it should read
};
Halves score_halves(const models::TextModel& model, const std::vector<TwoSidedText>& texts);

}  // namespace polyhead::training
