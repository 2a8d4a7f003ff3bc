#include "polyhead/head_measures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <string_view>

#include "core/text.h"
#include "polyhead/tensor.h"

namespace polyhead::viewer {
namespace {

constexpr std::int64_t kFewestTexts = 5;  // a head gets a name only if this many texts or more were measured

// What the measures need to know about a text. It is the same for the maps of all heads.
struct Facts {
  std::int64_t count;                             // T
  std::vector<std::int64_t> rows;                 // the queries over which measures are averaged
  // [T] true for keys that the measure `positional` identifies by their position. It identifies other keys by their distance from the query.
  std::vector<bool> by_place;
  std::vector<std::int64_t> separators;
  std::vector<std::vector<std::int64_t>> before;  // [T] for each token, the earlier occurrences of the same token
  bool starts_again(std::int64_t t) const { return !before[static_cast<std::size_t>(t)].empty() && before[static_cast<std::size_t>(t)].front() == 0; }
};

Facts facts_of(const MeasuredTokens& tokens) {
  Facts facts{.count = std::ssize(tokens.pieces)};
  const auto size = tokens.pieces.size();
  const auto special = [&](std::size_t t) { return !tokens.special.empty() && tokens.special[t]; };
  facts.by_place.resize(size), facts.before.resize(size);
  std::map<std::string_view, std::vector<std::int64_t>> seen;
  for (std::size_t t = 0; t < size; ++t) {
    const auto place = static_cast<std::int64_t>(t);
    if (!special(t)) facts.rows.push_back(place);
    if (special(t) && t > 0) facts.separators.push_back(place);
    facts.by_place[t] = special(t) || t == 0;
    facts.before[t] = seen[tokens.pieces[t]];
    seen[tokens.pieces[t]].push_back(place);
  }
  if (facts.rows.empty())
    for (std::int64_t t = 0; t < facts.count; ++t) facts.rows.push_back(t);
  return facts;
}

using Row = std::span<const float>;
float at(Row row, std::int64_t s) { return row[static_cast<std::size_t>(s)]; }

double sum_of(Row row) {
  double sum = 0;
  for (const float p : row) sum += static_cast<double>(p);
  return sum;
}

// Computes a measure for one query. Returns nullopt if the measure is not defined for this query.
using OfRow = std::optional<double> (*)(Row row, std::int64_t t, const Facts& facts);

std::optional<double> entropy(Row row, std::int64_t, const Facts&) {
  const double sum = sum_of(row);
  if (sum == 0) return {};
  double bits = 0;
  for (const float w : row) {
    const double p = static_cast<double>(w) / sum;
    bits -= p > 0 ? p * std::log2(p) : p * 0;  // if p is NaN, p * 0 makes the sum NaN too
  }
  return bits;
}

std::optional<double> distance(Row row, std::int64_t t, const Facts& facts) {
  const double sum = sum_of(row);
  if (sum == 0) return {};
  double mean = 0;
  for (std::int64_t s = 0; s < facts.count; ++s) mean += static_cast<double>(at(row, s)) / sum * static_cast<double>(std::abs(t - s));
  return mean;
}

std::optional<double> separators(Row row, std::int64_t, const Facts& facts) {
  if (facts.separators.empty()) return {};
  double sum = 0;
  for (const std::int64_t s : facts.separators) sum += static_cast<double>(at(row, s));
  return sum;
}

// The attention of query t to the keys that come `step` tokens after an earlier occurrence of t's token, summed over these keys.
std::optional<double> after_earlier(Row row, std::int64_t t, const Facts& facts, std::int64_t step) {
  const std::vector<std::int64_t>& before = facts.before[static_cast<std::size_t>(t)];
  if (before.empty()) return {};
  double sum = 0;
  for (const std::int64_t s : before) sum += static_cast<double>(at(row, s + step));
  return sum;
}

double one(Row row, std::int64_t s) { return static_cast<double>(at(row, s)); }

struct MeasureRow {
  HeadMeasure measure;
  OfRow of;  // null for the measure `positional`, which is computed from the whole map
};

constexpr std::array kRows{
    MeasureRow{{"previous", "previous token", 0.5}, [](Row row, std::int64_t t, const Facts&) { return t > 0 ? std::optional(one(row, t - 1)) : std::nullopt; }},
    MeasureRow{{"next", "next token", 0.5}, [](Row row, std::int64_t t, const Facts& facts) { return t + 1 < facts.count ? std::optional(one(row, t + 1)) : std::nullopt; }},
    MeasureRow{{"same", "same token", 0.5}, [](Row row, std::int64_t t, const Facts&) { return std::optional(one(row, t)); }},
    MeasureRow{{"first", "first token"}, [](Row row, std::int64_t, const Facts&) { return std::optional(one(row, 0)); }},
    MeasureRow{{"sink", "first-token sink", 0.5}, [](Row row, std::int64_t t, const Facts& facts) { return t > 1 && !facts.starts_again(t) ? std::optional(one(row, 0)) : std::nullopt; }},
    MeasureRow{{"separators", "separators", 0.5}, separators},
    MeasureRow{{"induction", "induction", 0.5}, [](Row row, std::int64_t t, const Facts& facts) { return after_earlier(row, t, facts, 1); }},
    MeasureRow{{"duplicate", "duplicate token", 0.5}, [](Row row, std::int64_t t, const Facts& facts) { return after_earlier(row, t, facts, 0); }},
    MeasureRow{{"positional", "positional share", 0.75}, nullptr},
    MeasureRow{{"entropy", "entropy"}, entropy},
    MeasureRow{{"distance", "distance"}, distance},
};

constexpr auto kMeasures = [] {
  std::array<HeadMeasure, kRows.size()> measures{};
  std::ranges::transform(kRows, measures.begin(), &MeasureRow::measure);
  return measures;
}();

// The share of the map that positions alone predict: the mean over the rows of the overlap of a row with its predicted row. A key's predicted weight is the mean that the other
// queries give to the same key, if the key is in facts.by_place, else to keys at the same distance.
double positional(std::span<const float> map, const Facts& facts) {
  const std::int64_t count = facts.count;
  const auto row_of = [&](std::int64_t t) { return map.subspan(static_cast<std::size_t>(t * count), static_cast<std::size_t>(count)); };
  std::vector<double> to_place(static_cast<std::size_t>(count)), to_distance(static_cast<std::size_t>(2 * count)), pairs(to_distance.size());
  const auto far = [&](std::int64_t t, std::int64_t s) { return static_cast<std::size_t>(s - t + count); };
  for (const std::int64_t t : facts.rows) {
    const Row row = row_of(t);
    for (std::int64_t s = 0; s < count; ++s) {
      if (facts.by_place[static_cast<std::size_t>(s)]) to_place[static_cast<std::size_t>(s)] += one(row, s);
      else to_distance[far(t, s)] += one(row, s), pairs[far(t, s)] += 1;
    }
  }
  const double others = static_cast<double>(std::ssize(facts.rows) - 1);
  if (others < 1) return std::numeric_limits<double>::quiet_NaN();
  std::vector<double> predicted(static_cast<std::size_t>(count));
  double shares = 0, measured = 0;
  for (const std::int64_t t : facts.rows) {
    const Row row = row_of(t);
    const double sum = sum_of(row);
    if (sum == 0) continue;
    double total = 0;
    for (std::int64_t s = 0; s < count; ++s) {
      const auto key = static_cast<std::size_t>(s);
      const double number = facts.by_place[key] ? others : pairs[far(t, s)] - 1, all = facts.by_place[key] ? to_place[key] : to_distance[far(t, s)];
      predicted[key] = number > 0 ? std::max(0.0, all - one(row, s)) / number : 0;  // rounding may make the difference of equal sums negative
      total += predicted[key];
    }
    double share = 0;
    for (std::int64_t s = 0; s < count && total > 0; ++s) share += std::min(one(row, s) / sum, predicted[static_cast<std::size_t>(s)] / total);
    shares += std::isnan(sum) ? sum : share;
    ++measured;
  }
  return shares / measured;  // 0 / 0, which is NaN, if no row was measured
}

std::vector<double> measure(std::span<const float> map, const Facts& facts) {
  std::vector<double> values;
  for (const MeasureRow& one_measure : kRows) {
    if (one_measure.of == nullptr) {
      values.push_back(positional(map, facts));
      continue;
    }
    double sum = 0, rows = 0;
    for (const std::int64_t t : facts.rows) {
      const std::optional<double> value = one_measure.of(map.subspan(static_cast<std::size_t>(t * facts.count), static_cast<std::size_t>(facts.count)), t, facts);
      if (value) sum += *value, ++rows;
    }
    values.push_back(sum / rows);  // 0 / 0, which is NaN, if no row was measured
  }
  return values;
}

void check_tokens(ConstTensorView maps, const MeasuredTokens& tokens, std::string_view form) {
  require(maps && is_floating(maps.dtype()) && maps.rank() >= 2 && maps.extent(-1) == maps.extent(-2), "measures of heads: the attention weights are ", maps.dtype(), " ", maps.shape(), "; they must be floating and ", form);
  require(std::ssize(tokens.pieces) == maps.extent(-1), "measures of heads: ", tokens.pieces.size(), " tokens for attention weights ", maps.shape(), "; give one for each query");
  require(tokens.special.empty() || tokens.special.size() == tokens.pieces.size(), "measures of heads: ", tokens.special.size(), " special flags for ", tokens.pieces.size(), " tokens; give one for each token, or none");
}

std::vector<double> measure(ConstTensorView map, const Facts& facts) {
  const Tensor numbers = Tensor::copy_of(map, DType::f32);
  return measure(std::span(numbers.data<float>(), static_cast<std::size_t>(numbers.numel())), facts);
}

}  // namespace

std::span<const HeadMeasure> head_measures() { return kMeasures; }

std::vector<double> measure_head(ConstTensorView map, const MeasuredTokens& tokens) {
  check_tokens(map, tokens, "[T,T]");
  require(map.rank() == 2, "measures of heads: the map is ", map.shape(), "; it must be [T,T]");
  return measure(map, facts_of(tokens));
}

double MeasuredTexts::Value::spread() const { return count < 2 ? std::numeric_limits<double>::quiet_NaN() : std::sqrt(squares / static_cast<double>(count - 1)); }

void MeasuredTexts::add(ConstTensorView attentions, const MeasuredTokens& tokens) {
  check_tokens(attentions, tokens, "[layers,heads,T,T]");
  require(attentions.rank() == 4, "measures of heads: the attention weights are ", attentions.shape(), "; they must be [layers,heads,T,T]");
  require(texts_ == 0 || (attentions.extent(0) == layers_ && attentions.extent(1) == heads_), "measures of heads: attention weights ", attentions.shape(), " after those of a text with ", layers_, " layers of ", heads_, " heads; all texts must be read by the same heads");
  const std::int64_t count = std::ssize(tokens.pieces);
  if (texts_ == 0) {
    layers_ = attentions.extent(0), heads_ = attentions.extent(1), shortest_ = count;
    values_.resize(static_cast<std::size_t>(layers_ * heads_) * kRows.size());
  }
  ++texts_, shortest_ = std::min(shortest_, count), longest_ = std::max(longest_, count);
  const Facts facts = facts_of(tokens);
  auto value = values_.begin();
  for (std::int64_t layer = 0; layer < layers_; ++layer) {
    for (std::int64_t head = 0; head < heads_; ++head) {
      const std::vector<double> measured = measure(attentions.select(0, layer).select(0, head), facts);
      for (std::size_t i = 0; i < measured.size(); ++i, ++value) {
        if (std::isnan(measured[i])) continue;
        const double change = measured[i] - value->mean;
        value->mean += change / static_cast<double>(++value->count);
        value->squares += change * (measured[i] - value->mean);
        value->held += kRows[i].measure.named_from > 0 && measured[i] >= kRows[i].measure.named_from;
      }
    }
  }
}

const MeasuredTexts::Value& MeasuredTexts::value(std::int64_t layer, std::int64_t head, std::size_t measure) const {
  require(layer >= 0 && layer < layers_ && head >= 0 && head < heads_ && measure < kRows.size(), "measures of heads: there is no measure ", measure, " of head ", layer, ".", head, "; there are ", layers_, " layers of ", heads_, " heads with ", kRows.size(), " measures");
  return values_[static_cast<std::size_t>(layer * heads_ + head) * kRows.size() + measure];
}

bool MeasuredTexts::names(std::int64_t layer, std::int64_t head, std::size_t measure) const {
  const Value& of = value(layer, head, measure);
  return kRows[measure].measure.named_from > 0 && of.count >= kFewestTexts && 10 * of.held >= 9 * of.count;
}

}  // namespace polyhead::viewer
