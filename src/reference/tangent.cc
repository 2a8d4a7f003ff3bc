#include "reference/tangent.h"

#include <cmath>
#include <limits>

namespace polyhead::reference {

std::vector<double> load_row_or_zeros(ConstTensorView view, std::int64_t b, std::int64_t n, std::int64_t row, std::int64_t width) {
  return view ? load_row(view, b, n, row) : std::vector<double>(static_cast<std::size_t>(width));
}

std::vector<double> load_head_or_zeros(ConstTensorView view, std::int64_t b, std::int64_t n, std::size_t size) {
  return view ? load_head(view, {}, b, n) : std::vector<double>(size);
}

// Computes the slope softcap'(x) = 1 - tanh^2(x/c) and the curvature softcap''(x) = -2/c tanh(x/c) (1 - tanh^2(x/c))      (docs/maths.md, eq. 8a, 8f)
CapSlopes::CapSlopes(double capped, double softcap) {
  if (softcap <= 0) return;
  const double tanh = capped / softcap;
  slope = 1 - tanh * tanh, curvature = -2 / softcap * tanh * slope;
}

TangentMaker::TangentMaker(const Problem& problem, const Tangents& tangents, ConstTensorView q, ConstTensorView k, std::int64_t b, std::int64_t n)
    : problem_(problem), tangents_(tangents), q_(q), b_(b), n_(n), keys_(load_head_transposed(k, {}, b, problem.kv_head(n))) {
  if (tangents.k) key_tangents_ = load_head_transposed(tangents.k, {}, b, problem.kv_head(n));
}

// Computes x'[s] = scale (<q', k[s]> + <q, k'[s]>),  score' = softcap'(x) x' + bias',  lse' = sum_s p score' + p_sink sink'      (docs/maths.md, eq. 8a, 8b)
void TangentMaker::row(std::int64_t t, const Row& row, RowTangent& tangent) const {
  const std::int64_t keys = problem_.keys, width = problem_.qk_width;
  tangent.scaled.assign(static_cast<std::size_t>(keys), 0.0);
  const auto add = [&](ConstTensorView query, const std::vector<double>& transposed) {
    if (!query || transposed.empty()) return;
    const std::vector<double> q = load_row(query, b_, n_, t);
    for (std::int64_t h = 0; h < width; ++h) add_scaled(keys, q[static_cast<std::size_t>(h)], transposed.data() + h * keys, tangent.scaled.data());
  };
  add(tangents_.q, keys_);
  add(q_, key_tangents_);

  std::vector<double> bias(static_cast<std::size_t>(keys));
  if (tangents_.bias) bias = load_row(tangents_.bias, b_, n_, t);
  if (tangents_.relative_bias) {
    const std::vector<double> values = load_row(tangents_.relative_bias.unsqueeze(0), 0, 0, n_);
    const Document& document = document_of(problem_, t);
    for (std::int64_t s = document.keys.first; s < document.keys.last; ++s)
      bias[static_cast<std::size_t>(s)] = values[static_cast<std::size_t>(relative_index(problem_, b_, document, t, s))];
  }

  tangent.sink = tangents_.sink ? load_row(tangents_.sink, b_, n_, t)[0] : 0;
  const double p_sink = row.sink == -std::numeric_limits<double>::infinity() ? 0 : std::exp(row.sink - row.lse);
  tangent.lse = p_sink == 0 ? 0 : p_sink * tangent.sink;
  tangent.score.assign(static_cast<std::size_t>(keys), 0.0);
  for (std::size_t s = 0; s < tangent.score.size(); ++s) {
    if (!row.attend[s] || row.uniform || row.empty) {
      tangent.scaled[s] = 0;
      continue;
    }
    tangent.scaled[s] *= problem_.scale;
    tangent.score[s] = CapSlopes(row.capped[s], problem_.softcap).slope * tangent.scaled[s] + bias[s];
    tangent.lse += row.p[s] * tangent.score[s];
  }
}

}  // namespace polyhead::reference
