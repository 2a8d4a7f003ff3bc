#include <algorithm>
#include <cmath>

#include "reference/reference.h"
#include "reference/row.h"

namespace polyhead::reference {

// p[t,s] = exp(score[t,s] - lse[t])      (docs/maths.md, eq. 10)
void map_rows(const MapsProblem& problem, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, double* rows) {
  const RowMaker maker(problem, problem.q, problem.k, b, n);
  Row row;
  for (const std::int64_t t : queries) {
    maker.scores(t, row);
    const std::vector<double>* result = &row.score;
    switch (problem.value) {
      case MapValue::scaled_score: result = &row.scaled; break;
      case MapValue::capped_score: result = &row.capped; break;
      case MapValue::score: break;
      case MapValue::probability:
      case MapValue::dropped: {
        const double lse = load_row(problem.lse, b, n, t)[0];
        row.p.assign(row.score.size(), 0.0);
        for (std::size_t s = 0; s < row.p.size() && !row.empty; ++s) {
          if (row.kept[s]) row.p[s] = std::exp(row.score[s] - lse);
        }
        maker.dropout(t, row);
        result = problem.value == MapValue::dropped ? &row.dropped : &row.p;
        break;
      }
    }
    rows = std::copy(result->begin(), result->end(), rows);
  }
}

}  // namespace polyhead::reference
