#include "reference/row.h"

#include <cmath>

#include "core/dispatch.h"
#include "core/interrupt.h"
#include "core/philox.h"

namespace polyhead::reference {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

std::vector<double> load_row(ConstTensorView view, std::int64_t b, std::int64_t n, std::int64_t row) {
  const std::int64_t columns = view.extent(-1);
  std::vector<double> values(index(columns));
  dispatch_floating(view.dtype(), [&](auto type) {
    const auto slice = head_slice<const typename decltype(type)::type>(view, b, n);
    for (std::int64_t j = 0; j < columns; ++j) values[index(j)] = load(slice(row, j));
  });
  return values;
}

void store_row(TensorView view, std::int64_t b, std::int64_t n, std::int64_t row, const double* values) {
  dispatch_floating(view.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const auto slice = head_slice<T>(view, b, n);
    for (std::int64_t j = 0; j < view.extent(-1); ++j) slice(row, j) = store<T>(values[j]);
  });
}

// Returns a row of an int8 k or v: scale times int8, rounded to float32      (docs/maths.md, section 7)
static std::vector<double> load_scaled_row(ConstTensorView view, float scale, std::int64_t b, std::int64_t n, std::int64_t row) {
  const auto slice = head_slice<const std::int8_t>(view, b, n);
  std::vector<double> values;
  for (std::int64_t j = 0; j < view.extent(-1); ++j) {
    const float product = scale * static_cast<float>(slice(row, j));
    values.push_back(product);
  }
  return values;
}

std::vector<double> load_head(ConstTensorView view, ConstTensorView scale, std::int64_t b, std::int64_t n) {
  std::vector<double> values;
  values.reserve(index(view.extent(-2) * view.extent(-1)));
  for (std::int64_t i = 0; i < view.extent(-2); ++i) {
    const std::vector<double> row =
        scale ? load_scaled_row(view, head_slice<const float>(scale, b, n)(i, 0), b, n, i) : load_row(view, b, n, i);
    values.insert(values.end(), row.begin(), row.end());
  }
  return values;
}

std::vector<double> load_head_transposed(ConstTensorView view, ConstTensorView scale, std::int64_t b, std::int64_t n) {
  const std::vector<double> rows = load_head(view, scale, b, n);
  const std::int64_t count = view.extent(-2), width = view.extent(-1);
  std::vector<double> columns(rows.size());
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t j = 0; j < width; ++j) columns[index(j * count + i)] = rows[index(i * width + j)];
  }
  return columns;
}

RowMaker::RowMaker(const Problem& problem, ConstTensorView q, ConstTensorView k, ConstTensorView k_scale, std::int64_t b, std::int64_t n)
    : problem_(problem), q_(q), b_(b), n_(n), keys_(load_head_transposed(k, k_scale, b, problem.kv_head(n))) {}

ScoreTile score_tile(const Problem& problem, std::int64_t b, std::int64_t n, std::int64_t t, double* scores) {
  ScoreTile tile;
  tile.scores = scores, tile.float64 = true;
  tile.rows = 1, tile.keys = tile.row_stride = problem.keys;
  tile.first_query = t, tile.batch = b, tile.head = n;
  return tile;
}

// Computes score[s] = softcap(rule(scale <q, k[s]>)) + bias[s] for the unmasked keys (docs/maths.md, eq. 1)
void RowMaker::scores(std::int64_t t, Row& row) const {
  check_interrupt();
  const std::int64_t keys = problem_.keys;
  row.scaled.assign(index(keys), 0.0);
  const std::vector<double> q = load_row(q_, b_, n_, t);
  for (std::int64_t h = 0; h < problem_.qk_width; ++h) add_scaled(keys, q[index(h)], keys_.data() + h * keys, row.scaled.data());
  for (double& x : row.scaled) x *= problem_.scale;

  row.capped = row.scaled;
  if (problem_.score_rule && keys > 0) problem_.score_rule.forward(score_tile(problem_, b_, n_, t, row.capped.data()), problem_.score_rule.data);
  if (const double c = problem_.softcap; c > 0) {
    for (double& x : row.capped) x = c * std::tanh(x / c);
  }
  row.score = row.capped;
  if (problem_.bias) {
    const std::vector<double> bias = load_row(problem_.bias, b_, n_, t);
    for (std::int64_t s = 0; s < keys; ++s) row.score[index(s)] += bias[index(s)];
  }
  if (problem_.relative_bias) {
    const std::vector<double> values = load_row(problem_.relative_bias.unsqueeze(0), 0, 0, n_);
    const Document& document = document_of(problem_, t);
    for (std::int64_t s = document.keys.first; s < document.keys.last; ++s)
      row.score[index(s)] += values[index(relative_index(problem_, b_, document, t, s))];
  }

  row.sink = problem_.sink ? load_row(problem_.sink, b_, n_, t)[0] : -kInfinity;

  const bool any = attended_keys(problem_, b_, n_, t, row.attend);
  row.uniform = !any && problem_.empty_rows == EmptyRows::uniform;
  if (!any && problem_.empty_rows != EmptyRows::zero) {
    const KeyRange all = document_of(problem_, t).keys;
    std::fill(row.attend.begin() + all.first, row.attend.begin() + all.last, std::uint8_t{1});
  }
  if (row.uniform) row.score.assign(index(keys), 0.0);

  row.empty = true;
  for (std::int64_t s = 0; s < keys; ++s) {
    double& score = row.score[index(s)];
    if (!row.attend[index(s)]) score = -kInfinity;
    row.empty &= score == -kInfinity;  // a row with a NaN score is not empty: the NaN must reach the output
  }
}

// Computes p[s] = exp(score[s] - lse). The largest score or the sink is subtracted first, so that no exponential overflows (docs/maths.md, eq. 2, 4).
void RowMaker::softmax(Row& row) const {
  const std::size_t keys = row.score.size();
  row.p.assign(keys, 0.0);
  row.lse = row.sink;
  if (row.empty) return;
  double largest = row.sink, sum = 0;
  for (const double score : row.score) largest = score > largest || std::isnan(largest) ? score : largest;
  for (std::size_t s = 0; s < keys; ++s) {
    if (row.attend[s]) sum += row.p[s] = std::exp(row.score[s] - largest);
  }
  sum += std::exp(row.sink - largest);  // makes the sum NaN if the sink is NaN or +infinity
  for (std::size_t s = 0; s < keys; ++s) {
    if (row.attend[s]) row.p[s] /= sum;
  }
  row.lse = largest + std::log(sum);
}

void RowMaker::softmax(double lse, Row& row) const {
  row.p.assign(row.score.size(), 0.0);
  row.lse = lse;
  row.empty |= lse == -kInfinity;
  for (std::size_t s = 0; s < row.score.size() && !row.empty; ++s) {
    if (row.attend[s]) row.p[s] = std::exp(row.score[s] - lse);
  }
}

void RowMaker::dropout(std::int64_t t, Row& row) const {
  const DropoutRule& rule = problem_.dropout;
  row.dropped = row.p;
  if (!rule.active()) return;
  row.keep_bits.resize(index(problem_.keys));
  if (rule.keep) {
    const auto keep = head_slice<const std::uint8_t>(rule.keep, b_, n_);
    for (std::int64_t s = 0; s < problem_.keys; ++s) row.keep_bits[index(s)] = keep(t, s) != 0;
  } else {
    const DropoutOrigin& at = rule.origin;
    DropoutBits(rule.p, rule.seed).row(at.b + b_, at.n + n_, at.t + t, at.s, problem_.keys, row.keep_bits.data());
  }
  for (std::int64_t s = 0; s < problem_.keys; ++s) row.dropped[index(s)] *= dropout_factor(row, s);
}

double RowMaker::dropout_factor(const Row& row, std::int64_t s) const {
  if (!problem_.dropout.active()) return 1;
  return row.keep_bits[index(s)] ? dropout_scale(problem_.dropout.p) : 0;
}

}  // namespace polyhead::reference
