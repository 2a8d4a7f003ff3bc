#include "sdpa/relative_bias.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/shared_sums.h"
#include "core/text.h"
#include "problem/problem.h"

namespace polyhead {
namespace {

// Returns a number for each distance x: |x| if the bias has slopes, or the bucket of x if the bias has a table.
std::vector<std::int64_t> steps_of(const RelativeBias& bias, const Distances& distances) {
  std::vector<std::int64_t> steps;
  for (const KeyRange& range : distances) {
    for (std::int64_t x = range.first; x < range.last; ++x)
      steps.push_back(bias.slopes ? std::abs(x) : relative_bucket(x, bias.table.extent(1), bias.bidirectional, bias.max_distance));
  }
  return steps;
}

}  // namespace

std::string bucket_fault(std::int64_t buckets, bool bidirectional, std::int64_t max_distance) {
  if (bidirectional ? buckets < 4 || buckets % 2 != 0 : buckets < 2)
    return cat(buckets, " buckets; ", bidirectional ? "if bidirectional, their number must be even and at least 4" : "at least 2 are needed");
  const std::int64_t exact = buckets / (bidirectional ? 4 : 2);
  if (max_distance > exact) return {};
  return cat("max_distance ", max_distance, "; the first ", exact, " buckets of a direction hold one distance each, so it must be larger than ", exact);
}

std::int64_t relative_bucket(std::int64_t x, std::int64_t buckets, bool bidirectional, std::int64_t max_distance) {
  const std::string fault = bucket_fault(buckets, bidirectional, max_distance);
  require(fault.empty(), "relative_bucket: ", fault);
  const std::int64_t count = bidirectional ? buckets / 2 : buckets, exact = count / 2;
  const std::int64_t first = bidirectional && x > 0 ? count : 0;
  // All distances from max_distance on are in the same bucket. So limiting x to max_distance changes no bucket, and -x cannot overflow.
  const std::int64_t limited = std::clamp(x, -max_distance, max_distance);
  const std::int64_t distance = bidirectional ? std::abs(limited) : std::max<std::int64_t>(-limited, 0);
  if (distance < exact) return first + distance;
  if (distance == max_distance) return first + count - 1;  // in long sequences this holds for most distances; they need no logarithm
  const double share = std::log(static_cast<double>(distance) / static_cast<double>(exact)) /
                       std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  return first + std::min(exact + static_cast<std::int64_t>(share * static_cast<double>(count - exact)), count - 1);
}

Tensor alibi_slopes(std::int64_t heads) {
  require(heads >= 0, "alibi_slopes: heads is ", heads, "; it must not be negative");
  Tensor slopes(DType::f32, {heads});
  std::int64_t power = 1;
  while (power <= heads / 2) power *= 2;
  for (std::int64_t i = 0; i < heads; ++i) {
    const double exponent = i < power ? static_cast<double>(i + 1) / static_cast<double>(power)
                                      : static_cast<double>(2 * (i - power) + 1) / static_cast<double>(2 * power);
    slopes.data<float>()[i] = static_cast<float>(std::exp2(-8 * exponent));
  }
  return slopes;
}

Distances find_distances(KeyRules& rules, std::int64_t queries, std::int64_t keys) {
  // A band, and the range of distances that its pairs have. If the ranges of several sequences or documents overlap, they share the values of these distances.
  struct Use {
    Band* band;
    KeyRange range;
  };
  std::vector<Use> uses;
  const auto add = [&](Band& band, std::int64_t own_queries, std::int64_t own_keys) {
    if (own_queries > 0 && own_keys > 0) uses.push_back({&band, {1 - own_queries - band.diagonal, own_keys - band.diagonal}});
  };
  if (!rules.bands.empty()) {
    for (Band& band : rules.bands) add(band, queries, keys);
  } else if (!rules.documents.empty()) {
    for (Document& d : rules.documents) add(d.band, d.queries.last - d.queries.first, d.keys.last - d.keys.first);
  } else {
    add(rules.all_pairs.band, queries, keys);
  }
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.range.first < b.range.first; });
  Distances distances;
  std::int64_t before = 0;  // number of distances in all ranges of `distances` before the last range
  for (const Use& use : uses) {
    if (distances.empty() || use.range.first > distances.back().last) {
      if (!distances.empty()) before += distances.back().last - distances.back().first;
      distances.push_back(use.range);
    }
    KeyRange& range = distances.back();
    range.last = std::max(range.last, use.range.last);
    use.band->distance_origin = before - use.band->diagonal - range.first;
  }
  return distances;
}

Tensor relative_bias_values(const RelativeBias& bias, const Distances& distances, DType dtype) {
  const std::vector<std::int64_t> steps = steps_of(bias, distances);
  const std::int64_t heads = bias.parameter().extent(0);
  Tensor values(DType::f64, {heads, std::ssize(steps)});
  if (steps.empty()) return Tensor(dtype, values.shape());
  const Tensor given = Tensor::copy_of(bias.parameter(), DType::f64);
  double* value = values.data<double>();
  for (std::int64_t n = 0; n < heads; ++n) {
    const double* const of_head = given.data<double>() + n * (given.numel() / heads);
    for (const std::int64_t step : steps) *value++ = bias.slopes ? -of_head[0] * static_cast<double>(step) : of_head[step];
  }
  return dtype == DType::f64 ? std::move(values) : Tensor::copy_of(values, dtype);
}

void add_up_relative_gradient(const RelativeBias& bias, const Distances& distances, ConstTensorView d_values, TensorView gradient) {
  const Tensor each = Tensor::copy_of(d_values, DType::f64);
  const SharedSums sums(gradient);
  const TensorView& to = sums.view();
  const std::vector<std::int64_t> steps = steps_of(bias, distances);
  const double* d = each.data<double>();
  for (std::int64_t n = 0; n < d_values.extent(0); ++n) {
    double* const of_head = to.data<double>() + n * to.stride(0);
    for (const std::int64_t step : steps) {
      if (bias.slopes) {
        *of_head -= static_cast<double>(step) * *d++;
      } else {
        of_head[step * to.stride(1)] += *d++;
      }
    }
  }
  sums.store();
}

}  // namespace polyhead
