#include <cmath>

#include "reference/reference.h"
#include "reference/row.h"

namespace polyhead::reference {
namespace {

// Returns the row, with the range of the keys whose p is positive and the row's entropy -sum p log p. NaN counts as positive.
MapRow describe(std::int64_t index, std::span<const double> values, std::span<const double> p, double sink) {
  MapRow row{index, values, {0, 0}, 0, sink};
  for (std::size_t s = 0; s < p.size(); ++s) {
    if (p[s] == 0) continue;
    if (row.keys.empty()) row.keys.first = static_cast<std::int64_t>(s);
    row.keys.last = static_cast<std::int64_t>(s) + 1;
    row.entropy -= p[s] * std::log(p[s]);
  }
  return row;
}

}  // namespace

// Computes rows of a map: p[t,s] = exp(score[t,s] - lse[t]) (docs/maths.md, eq. 10). lse is computed from the float64 scores, as forward() does.
void map_rows(const MapsProblem& problem, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, const RowConsumer& take) {
  const RowMaker maker(problem, problem.q, problem.k, problem.k_scale, b, n);
  Row row;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const std::int64_t t = queries[i];
    maker.scores(t, row);
    const std::vector<double>* result = &row.score;
    row.p.clear();
    switch (problem.value) {
      case MapValue::scaled_score: result = &row.scaled; break;
      case MapValue::capped_score: result = &row.capped; break;
      case MapValue::score: break;
      case MapValue::probability:
      case MapValue::dropped: {
        // The row is computed again instead of with a stored lse. The rounding error of a stored lse would multiply the whole row by a factor: by up to 1 ±
        // 1e-3 for float32 scores of 1e4, and by as much as the number of keys for scores of -1e38.
        maker.softmax(row);
        maker.dropout(t, row);
        result = problem.value == MapValue::dropped ? &row.dropped : &row.p;
        break;
      }
    }
    const bool of_weights = problem.value == MapValue::probability || problem.value == MapValue::dropped;
    const double sink = !of_weights || row.sink == -kInfinity ? 0 : std::exp(row.sink - row.lse);
    take(describe(static_cast<std::int64_t>(i), *result, row.p, sink));
  }
}

double entropy_of_mean(DType dtype, const void* p, const void* q, std::int64_t count) {
  const auto sum = [&](const auto* first, const auto* second) {
    double entropy = 0;
    for (std::int64_t s = 0; s < count; ++s) {
      const double m = (static_cast<double>(first[s]) + static_cast<double>(second[s])) / 2;
      entropy -= m == 0 ? 0 : m * std::log(m);
    }
    return entropy;
  };
  return dtype == DType::f64 ? sum(static_cast<const double*>(p), static_cast<const double*>(q)) : sum(static_cast<const float*>(p), static_cast<const float*>(q));
}

}  // namespace polyhead::reference
