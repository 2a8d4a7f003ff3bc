#include <vector>

#include "core/parallel.h"
#include "reference/reference.h"
#include "reference/row.h"

namespace polyhead::reference {

// Computes the forward pass: out[t] = sum_s drop(p)[t,s] v[s]      lse[t] = log sum_s exp(score[t,s])      attention_weights = p      (docs/maths.md, eq. 1-4)
void forward(const ForwardProblem& problem) {
  parallel_for(problem.batch * problem.heads, 1, problem.executor, [&](std::int64_t first, std::int64_t last) {
    Row row;
    for (std::int64_t head = first; head < last; ++head) {
      const std::int64_t b = head / problem.heads, n = head % problem.heads;
      const RowMaker maker(problem, problem.q, problem.k, problem.k_scale, b, n);
      const std::vector<double> v = load_head(problem.v, problem.v_scale, b, problem.kv_head(n));
      std::vector<double> out(static_cast<std::size_t>(problem.v_width));
      for (std::int64_t t = 0; t < problem.queries; ++t) {
        maker.scores(t, row);
        maker.softmax(row);
        maker.dropout(t, row);
        out.assign(out.size(), 0.0);
        for (std::int64_t s = 0; s < problem.keys; ++s) {
          const auto at = static_cast<std::size_t>(s);
          if (!row.empty && row.attend[at]) add_scaled(problem.v_width, row.dropped[at], v.data() + s * problem.v_width, out.data());
        }
        store_row(problem.out, b, n, t, out.data());
        if (problem.lse) store_row(problem.lse, b, n, t, &row.lse);
        if (problem.attention_weights) store_row(problem.attention_weights, b, n, t, row.p.data());
      }
    }
  });
}

}  // namespace polyhead::reference
