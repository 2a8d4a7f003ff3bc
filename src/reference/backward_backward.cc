#include <cmath>
#include <vector>

#include "reference/bias_gradient.h"
#include "reference/reference.h"
#include "reference/tangent.h"

namespace polyhead::reference {
namespace {

// A prime marks a tangent. The tangents of the inputs are the gradients of the loss by d_q, d_k, d_v, d_bias and d_sink (docs/maths.md, eq. 8a-8h).
//   w  = m <d_out, v>,  w' = m <d_out, v'>,  delta = sum_s p w,  phi = sum_s p ((score' - lse') w + w'),  m = dropout's factor of p
//   d_d_out   = out'                                    as computed by the jvp
//   d_v[s]    = sum_t drop(p) (score' - lse') d_out[t]
//   d_score   = p ((score' - lse') (w - delta) + w' - phi)          = d_bias
//   d_score1  = p (w - delta)                                       d_score as computed by the backward pass
//   d_x       = softcap'(x) d_score + softcap''(x) x' d_score1,     d_x' = softcap'(x) d_score1
//   d_q[t]    = scale sum_s (d_x k[s] + d_x' k'[s]),                d_k[s] = scale sum_t (d_x q[t] + d_x' q'[t])
//   d_sink    = p_sink ((sink' - lse') (0 - delta) - phi)
class KvHead {
 public:
  KvHead(const BackwardBackwardProblem& problem, std::int64_t b, std::int64_t kv)
      : p_(problem),
        b_(b),
        kv_(kv),
        k_(load_head(problem.k, {}, b, kv)),
        v_(load_head(problem.v, {}, b, kv)),
        k_tangent_(load_head_or_zeros(problem.tangents.k, b, kv, k_.size())),
        v_tangent_(load_head_or_zeros(problem.tangents.v, b, kv, v_.size())),
        d_k_(k_.size()),
        d_v_(v_.size()) {}

  void run(BiasGradient* d_bias) {
    const std::int64_t group = p_.heads / p_.kv_heads;
    for (std::int64_t n = kv_ * group; n < (kv_ + 1) * group; ++n) {
      const RowMaker maker(p_, p_.q, p_.k, {}, b_, n);
      const TangentMaker tangents(p_, p_.tangents, p_.q, p_.k, b_, n);
      for (std::int64_t t = 0; t < p_.queries; ++t) {
        maker.scores(t, row_);
        maker.softmax(row_);
        maker.dropout(t, row_);
        tangents.row(t, row_, tangent_);
        differentiate_row(maker, n, t);
        if (d_bias != nullptr) d_bias->add(b_, n, t, d_score_);
      }
    }
    for (std::int64_t s = 0; s < p_.keys; ++s) {
      if (p_.d_k) store_row(p_.d_k, b_, kv_, s, d_k_.data() + s * p_.qk_width);
      if (p_.d_v) store_row(p_.d_v, b_, kv_, s, d_v_.data() + s * p_.v_width);
    }
  }

 private:
  static double product(std::int64_t width, const double* a, const double* b) {
    double sum = 0;
    for (std::int64_t i = 0; i < width; ++i) sum += a[i] * b[i];
    return sum;
  }

  void differentiate_row(const RowMaker& maker, std::int64_t n, std::int64_t t) {
    const std::int64_t keys = p_.keys, qk_width = p_.qk_width, v_width = p_.v_width;
    const std::vector<double> q = load_row(p_.q, b_, n, t), d_out = load_row(p_.d_out, b_, n, t),
                              q_tangent = load_row_or_zeros(p_.tangents.q, b_, n, t, qk_width);
    std::vector<double> d_q(static_cast<std::size_t>(qk_width)), d_d_out(static_cast<std::size_t>(v_width)), w(static_cast<std::size_t>(keys)), w_tangent(w.size());
    d_score_.assign(w.size(), 0.0);
    double delta = 0, phi = 0;
    for (std::int64_t s = 0; s < keys; ++s) {
      const auto at = static_cast<std::size_t>(s);
      if (row_.empty || !row_.attend[at]) continue;
      const double centred = row_.uniform ? 0 : tangent_.score[at] - tangent_.lse, factor = maker.dropout_factor(row_, s);
      w[at] = factor * product(v_width, d_out.data(), v_.data() + s * v_width);
      w_tangent[at] = factor * product(v_width, d_out.data(), v_tangent_.data() + s * v_width);
      delta += row_.p[at] * w[at];
      phi += row_.p[at] * (centred * w[at] + w_tangent[at]);
      if (!row_.uniform) {
        add_scaled(v_width, row_.dropped[at] * centred, v_.data() + s * v_width, d_d_out.data());
        add_scaled(v_width, row_.dropped[at] * centred, d_out.data(), d_v_.data() + s * v_width);
      }
      add_scaled(v_width, row_.dropped[at], v_tangent_.data() + s * v_width, d_d_out.data());
    }
    for (std::int64_t s = 0; s < keys; ++s) {
      const auto at = static_cast<std::size_t>(s);
      if (row_.empty || row_.uniform || !row_.attend[at]) continue;
      const CapSlopes cap(row_.capped[at], p_.softcap);
      const double first = row_.p[at] * (w[at] - delta);
      d_score_[at] = row_.p[at] * ((tangent_.score[at] - tangent_.lse) * (w[at] - delta) + w_tangent[at] - phi);
      const double d_x = p_.scale * (cap.slope * d_score_[at] + cap.curvature * tangent_.scaled[at] * first), d_x_tangent = p_.scale * cap.slope * first;
      add_scaled(qk_width, d_x, k_.data() + s * qk_width, d_q.data());
      add_scaled(qk_width, d_x, q.data(), d_k_.data() + s * qk_width);
      if (p_.tangents.k) add_scaled(qk_width, d_x_tangent, k_tangent_.data() + s * qk_width, d_q.data());
      if (p_.tangents.q) add_scaled(qk_width, d_x_tangent, q_tangent.data(), d_k_.data() + s * qk_width);
    }
    if (p_.d_q) store_row(p_.d_q, b_, n, t, d_q.data());
    if (p_.d_d_out) store_row(p_.d_d_out, b_, n, t, d_d_out.data());
    if (p_.d_sink) {
      const double p_sink = row_.sink == -kInfinity ? 0 : std::exp(row_.sink - row_.lse);
      const double d_sink = p_sink == 0 || row_.empty ? 0 : p_sink * ((tangent_.sink - tangent_.lse) * (0 - delta) - phi);
      store_row(p_.d_sink, b_, n, t, &d_sink);
    }
  }

  const BackwardBackwardProblem& p_;
  const std::int64_t b_, kv_;
  const std::vector<double> k_, v_, k_tangent_, v_tangent_;  // [S,H] and [S,V]
  std::vector<double> d_k_, d_v_, d_score_;
  Row row_;
  RowTangent tangent_;
};

}  // namespace

void backward_backward(const BackwardBackwardProblem& problem) {
  for_each_kv_head(problem, [&](std::int64_t b, std::int64_t kv, BiasGradient* d_bias) { KvHead(problem, b, kv).run(d_bias); });
}

}  // namespace polyhead::reference
