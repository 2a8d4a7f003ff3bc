#include "training/two_sided.h"

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "polyhead/nn/seed.h"
#include "training/figures.h"
#include "training/lines.h"

namespace polyhead::training {
namespace {

using models::ByteSpan;
using models::TextModel;

constexpr double kEnoughMass = 0.45;
constexpr std::int64_t kShortText = 12;  // a text is joined with another for the score only if it has at most this many words
constexpr std::array kJoints{", but ", ", but ", ", but ", ". ", "; ", ", though ", ", however ", " but ", ", and yet ", ", although ", ". But ", " and "};

// The text without the punctuation at its end, as a clause of a longer text.
std::string_view clause(std::string_view text) {
  while (text.size() > 1 && std::string_view(".!?,;: ").find(text.back()) != text.npos) text.remove_suffix(1);
  return text;
}

TwoSidedText joined(const ClassifiedTexts& data, std::size_t positive, std::size_t negative, std::string_view joint, bool positive_first) {
  const std::string_view first = clause(data.texts[positive_first ? positive : negative]), second = clause(data.texts[positive_first ? negative : positive]);
  TwoSidedText result{.text = cat(first, joint, second), .positive = {0, first.size()}, .negative = {first.size() + joint.size(), first.size() + joint.size() + second.size()}};
  if (!positive_first) std::swap(result.positive, result.negative);
  result.rating = (data.ratings[positive] + data.ratings[negative]) / 2;
  return result;
}

}  // namespace

Sides::Sides(const TextModel& model, const ClassifiedTexts& data, double least, std::int64_t words) {
  if (!data.labels.empty()) return;
  constexpr std::int64_t kJointTokens = 16;
  const std::int64_t most = (model.classifier.config.longest - kJointTokens) / 2;
  for (std::size_t i = 0; i < data.texts.size(); ++i) {
    const std::string& text = data.texts[i];
    if (std::abs(data.ratings[i]) < least || std::ssize(split_at_white_space(text)) > words || std::ssize(model.tokenizer.encode(text).ids) > most) continue;
    (data.ratings[i] > 0 ? positive : negative).push_back(i);
  }
}

TwoSidedText Sides::draw(const ClassifiedTexts& data, std::uint64_t seed, bool any_joint) const {
  const auto pick = [&](const std::vector<std::size_t>& list, std::uint64_t number) { return list[nn::derive_seed(seed, number) % list.size()]; };
  return joined(data, pick(positive, 0), pick(negative, 1), kJoints[any_joint ? nn::derive_seed(seed, 2) % kJoints.size() : 0], nn::derive_seed(seed, 3) % 2 == 0);
}

std::vector<TwoSidedText> two_sided_texts(const TextModel& model, const ClassifiedTexts& data, std::int64_t count, std::uint64_t seed) {
  std::vector<TwoSidedText> texts;
  const Sides sides(model, data, 1, kShortText);
  for (std::int64_t i = 0; sides && i < count; ++i) texts.push_back(sides.draw(data, nn::derive_seed(seed, static_cast<std::uint64_t>(i)), false));
  return texts;
}

Halves score_halves(const TextModel& model, const std::vector<TwoSidedText>& texts) {
  Halves halves{.texts = std::ssize(texts)};
  require(model.classifier.config.heads > kNegativeHead, "halves are read by heads ", kPositiveHead, " and ", kNegativeHead, "; the model has ", counted(model.classifier.config.heads, "head"));
  for (const TwoSidedText& text : texts) {
    const models::ClassifiedText read = models::classify(model, text.text);
    const auto mass = [&](std::int64_t head, ByteSpan part) {
      double sum = 0;
      const std::int64_t length = std::ssize(read.text.spans);
      for (std::int64_t t = 0; t < length; ++t)
        if (inside(read.text.spans[static_cast<std::size_t>(t)], part)) sum += static_cast<double>(read.pooling.data<float>()[head * length + t]);
      return sum;
    };
    const double positive = mass(kPositiveHead, text.positive), negative = mass(kNegativeHead, text.negative);
    halves.both += positive >= kEnoughMass && negative >= kEnoughMass;
    halves.positive += positive / static_cast<double>(texts.size()), halves.negative += negative / static_cast<double>(texts.size());
  }
  return halves;
}

}  // namespace polyhead::training
