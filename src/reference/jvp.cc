#include <vector>

#include "core/parallel.h"
#include "reference/reference.h"
#include "reference/tangent.h"

namespace polyhead::reference {

// Computes forward mode: out'[t] = sum_s drop(p)[t,s] ((score'[t,s] - lse'[t]) v[s] + v'[s])   lse'[t] = sum_s p[t,s] score'[t,s]   (docs/maths.md, eq. 8b, 8c)
void jvp(const JvpProblem& problem) {
  parallel_for(problem.batch * problem.heads, 1, problem.executor, [&](std::int64_t first, std::int64_t last) {
    Row row;
    RowTangent tangent;
    for (std::int64_t head = first; head < last; ++head) {
      const std::int64_t b = head / problem.heads, n = head % problem.heads, kv = problem.kv_head(n), width = problem.v_width;
      const RowMaker maker(problem, problem.q, problem.k, {}, b, n);
      const TangentMaker tangents(problem, problem.tangents, problem.q, problem.k, b, n);
      const std::vector<double> v = load_head(problem.v, {}, b, kv), v_tangent = load_head_or_zeros(problem.tangents.v, b, kv, v.size());
      std::vector<double> out(static_cast<std::size_t>(width));
      for (std::int64_t t = 0; t < problem.queries; ++t) {
        maker.scores(t, row);
        maker.softmax(row);
        maker.dropout(t, row);
        tangents.row(t, row, tangent);
        out.assign(out.size(), 0.0);
        for (std::int64_t s = 0; s < problem.keys; ++s) {
          const auto at = static_cast<std::size_t>(s);
          if (row.empty || !row.attend[at]) continue;
          if (!row.uniform) add_scaled(width, row.dropped[at] * (tangent.score[at] - tangent.lse), v.data() + s * width, out.data());
          add_scaled(width, row.dropped[at], v_tangent.data() + s * width, out.data());
        }
        store_row(problem.out_tangent, b, n, t, out.data());
        if (problem.lse_tangent) store_row(problem.lse_tangent, b, n, t, &tangent.lse);
      }
    }
  });
}

}  // namespace polyhead::reference
