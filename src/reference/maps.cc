#include "reference/reference.h"
#include "reference/row.h"

namespace polyhead::reference {

// p[t,s] = exp(score[t,s] - lse[t])      (docs/maths.md, eq. 10), with the lse of the float64 scores, as in forward
void map_rows(const MapsProblem& problem, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, const RowConsumer& take) {
  const RowMaker maker(problem, problem.q, problem.k, problem.k_scale, b, n);
  Row row;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const std::int64_t t = queries[i];
    maker.scores(t, row);
    const std::vector<double>* result = &row.score;
    switch (problem.value) {
      case MapValue::scaled_score: result = &row.scaled; break;
      case MapValue::capped_score: result = &row.capped; break;
      case MapValue::score: break;
      case MapValue::probability:
      case MapValue::dropped: {
        // A stored lse is not used, because its rounding would scale the whole row: by 1 ± 1e-3 for float32 scores of 1e4, by the number of
        // keys for scores of -1e38.
        maker.softmax(row);
        maker.dropout(t, row);
        result = problem.value == MapValue::dropped ? &row.dropped : &row.p;
        break;
      }
    }
    take(static_cast<std::int64_t>(i), *result);
  }
}

}  // namespace polyhead::reference
