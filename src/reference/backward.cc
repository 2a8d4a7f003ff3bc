#include <cmath>
#include <numeric>
#include <vector>

#include "reference/bias_gradient.h"
#include "reference/reference.h"
#include "reference/row.h"

namespace polyhead::reference {
namespace {

// Returns delta = <d_out, out> of a row.
double product_of_rows(const BackwardProblem& problem, std::int64_t b, std::int64_t n, std::int64_t t) {
  const std::vector<double> out = load_row(problem.out, b, n, t), d_out = load_row(problem.d_out, b, n, t);
  return std::inner_product(out.begin(), out.end(), d_out.begin(), 0.0);
}

// Replaces d_x, the gradients of a row's new scores, by the gradients of the row's scaled scores. A d_x of 0 stays 0 whatever the rule computes: masked pairs
// have d_x = 0, and their scores may be NaN.
void differentiate_score_rule(const BackwardProblem& problem, std::int64_t b, std::int64_t n, std::int64_t t, std::vector<double> scaled, std::vector<double>& d_x) {
  const std::vector<double> d_new = d_x;
  for (std::size_t s = 0; s < d_x.size(); ++s) scaled[s] = d_new[s] == 0 ? 0 : scaled[s];
  problem.score_rule.backward(score_tile(problem, b, n, t, d_x.data()), scaled.data(), problem.score_rule_sums(b, n), problem.score_rule.data);
  for (std::size_t s = 0; s < d_x.size(); ++s) d_x[s] = d_new[s] == 0 ? 0 : d_x[s];
}

// Computes the gradients for one key/value head:
// d_v[s]   = sum_t drop(p)[t,s] d_out[t]                                       (docs/maths.md, eq. 5)
// d_p[t,s] = m[t,s] <d_out[t], v[s]>, m = dropout's factor of p                (eq. 6)
// d_score  = p (d_p - sum_s p d_p)              = d_bias                       (eq. 7)
// d_sink   = -exp(sink - lse) sum_s p d_p                                      (eq. 7a)
// d_x      = d_score (1 - tanh^2(x/c))          x = rule(scale <q,k>)          (eq. 8)
// d_x by the rule's own backward function       with a score rule              (eq. 8')
// d_q[t]   = scale sum_s d_x[t,s] k[s]          d_k[s] = scale sum_t d_x[t,s] q[t]   (eq. 9)
// p is computed again from q and k, so that the rounding of lse and out does not affect the gradients. With BackwardProblem::part_of_keys, p = exp(score - lse) and
// delta = <d_out, out> are computed from the given lse and out, which belong to all keys.
void backward_kv_head(const BackwardProblem& problem, std::int64_t b, std::int64_t kv, BiasGradient* d_bias) {
  const bool part = problem.part_of_keys;
  const std::int64_t keys = problem.keys, qk_width = problem.qk_width, v_width = problem.v_width;
  const std::vector<double> k = load_head(problem.k, {}, b, kv);
  const std::vector<double> v_transposed = load_head_transposed(problem.v, {}, b, kv);
  std::vector<double> d_k(k.size()), d_v(v_transposed.size());
  std::vector<double> d_p(static_cast<std::size_t>(keys)), d_score(d_p.size()), d_x(d_p.size()), d_q(static_cast<std::size_t>(qk_width));
  Row row;

  const std::int64_t group = problem.heads / problem.kv_heads;
  for (std::int64_t n = kv * group; n < (kv + 1) * group; ++n) {
    const RowMaker maker(problem, problem.q, problem.k, {}, b, n);
    for (std::int64_t t = 0; t < problem.queries; ++t) {
      maker.scores(t, row);
      part ? maker.softmax(load_row(problem.lse, b, n, t)[0], row) : maker.softmax(row);
      maker.dropout(t, row);
      d_q.assign(d_q.size(), 0.0);
      double delta = part ? product_of_rows(problem, b, n, t) : 0;
      if (!row.empty) {
        const std::vector<double> q = load_row(problem.q, b, n, t), d_out = load_row(problem.d_out, b, n, t);
        d_p.assign(d_p.size(), 0.0);
        for (std::int64_t j = 0; j < v_width; ++j) {
          add_scaled(keys, d_out[static_cast<std::size_t>(j)], v_transposed.data() + j * keys, d_p.data());
        }
        for (std::int64_t s = 0; s < keys; ++s) {
          const auto at = static_cast<std::size_t>(s);
          if (!row.attend[at]) continue;
          d_p[at] *= maker.dropout_factor(row, s);
          if (!part) delta += row.p[at] * d_p[at];
          add_scaled(v_width, row.dropped[at], d_out.data(), d_v.data() + s * v_width);
        }
        for (std::int64_t s = 0; s < keys; ++s) {
          const auto at = static_cast<std::size_t>(s);
          d_score[at] = row.attend[at] && !row.uniform ? row.p[at] * (d_p[at] - delta) : 0.0;
          const double tanh = problem.softcap > 0 ? row.capped[at] / problem.softcap : 0.0;
          d_x[at] = d_score[at] == 0 ? 0.0 : d_score[at] * (1 - tanh * tanh);
        }
        if (problem.score_rule) differentiate_score_rule(problem, b, n, t, row.scaled, d_x);
        for (std::int64_t s = 0; s < keys; ++s) {
          const auto at = static_cast<std::size_t>(s);
          if (!row.attend[at] || row.uniform) continue;
          const double d_product = problem.scale * d_x[at];
          add_scaled(qk_width, d_product, k.data() + s * qk_width, d_q.data());
          add_scaled(qk_width, d_product, q.data(), d_k.data() + s * qk_width);
        }
        if (d_bias) d_bias->add(b, n, t, d_score);
      }
      if (problem.d_q) store_row(problem.d_q, b, n, t, d_q.data());
      if (problem.d_sink) {
        const double p_sink = row.sink == -kInfinity ? 0 : std::exp(row.sink - row.lse), d_sink = p_sink == 0 ? 0 : -p_sink * delta;
        store_row(problem.d_sink, b, n, t, &d_sink);
      }
    }
  }
  for (std::int64_t s = 0; s < keys; ++s) {
    if (problem.d_k) store_row(problem.d_k, b, kv, s, d_k.data() + s * qk_width);
    if (problem.d_v) store_row(problem.d_v, b, kv, s, d_v.data() + s * v_width);
  }
}

}  // namespace

void backward(const BackwardProblem& problem) {
  for_each_kv_head(problem, [&](std::int64_t b, std::int64_t kv, BiasGradient* d_bias) { backward_kv_head(problem, b, kv, d_bias); });
}

}  // namespace polyhead::reference
