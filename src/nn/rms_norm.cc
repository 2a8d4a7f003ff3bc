#include "polyhead/nn/rms_norm.h"

#include <cmath>

#include "nn/check.h"
#include "nn/rows.h"

namespace polyhead::nn {
namespace {

void require_parameters(const char* operation, const RMSNorm& norm) {
  require_weight(operation, norm.weight, 1, "[width]");
  require(norm.epsilon >= 0, operation, ": epsilon is ", norm.epsilon, "; it may not be negative");
}

template <class T>
std::vector<Accumulator<T>> load_weight(const Tensor& weight) {
  std::vector<Accumulator<T>> values;
  const ConstTensorView view = weight;
  for (std::int64_t e = 0; e < view.extent(0); ++e) values.push_back(load(view.data<T>()[e * view.stride(0)]));
  return values;
}

// 1 / sqrt(mean(x^2) + epsilon)
template <class A>
A inverse_root(std::int64_t width, const A* x, double epsilon) {
  const A squares = sum<A>(width, [x](std::int64_t e) { return x[e] * x[e]; });
  return 1 / std::sqrt(squares / static_cast<A>(width) + static_cast<A>(epsilon));
}

template <class T>
void normalise(const RMSNorm& norm, ConstTensorView x_view, TensorView y_view, Executor* executor) {
  using A = Accumulator<T>;
  const std::int64_t width = norm.width();
  const Rows<const T> x(x_view);
  const Rows<T> y(y_view);
  const std::vector<A> weight = load_weight<T>(norm.weight);
  parallel_for(x.count(), row_grain(width, 2), executor, [&](std::int64_t first, std::int64_t last) {
    ComputedRow<const T> x_row(x, width);
    ComputedRow<T> y_row(y, width);
    const A* const w = weight.data();
    for (std::int64_t row = first; row < last; ++row) {
      const A* const from = x_row.load_row(row);
      A* const to = y_row.at(row);
      const A r = inverse_root(width, from, norm.epsilon);
      for (std::int64_t e = 0; e < width; ++e) to[e] = from[e] * r * w[e];
      y_row.put(row);
    }
  });
}

// With n = r x, r = 1 / sqrt(mean(x^2) + epsilon) and g = d_y weight: d_x = r (g - n mean(g n)).
template <class T>
void backward_input(const RMSNorm& norm, ConstTensorView x_view, ConstTensorView d_y_view, TensorView d_x_view, bool adds,
                    Executor* executor) {
  using A = Accumulator<T>;
  const std::int64_t width = norm.width();
  const Rows<const T> x(x_view), d_y(d_y_view);
  const Rows<T> d_x(d_x_view);
  const std::vector<A> weight = load_weight<T>(norm.weight);
  parallel_for(x.count(), row_grain(width, 3), executor, [&](std::int64_t first, std::int64_t last) {
    ComputedRow<const T> x_row(x, width), d_y_row(d_y, width);
    const A* const w = weight.data();
    for (std::int64_t row = first; row < last; ++row) {
      const A *const from = x_row.load_row(row), *const d = d_y_row.load_row(row);
      const A r = inverse_root(width, from, norm.epsilon);
      const A along = r * r / static_cast<A>(width) * sum<A>(width, [=](std::int64_t e) { return d[e] * w[e] * from[e]; });
      for (std::int64_t e = 0; e < width; ++e) {
        T& target = d_x.at(row, e);
        const A value = (d[e] * w[e] - from[e] * along) * r;
        target = store<T>(adds ? load(target) + value : value);
      }
    }
  });
}

// d_weight[e] = sum_r d_y[r,e] n[r,e], in chunks of rows of a fixed size whose float64 sums are added in order: no bit depends on threads.
template <class T>
void backward_weight(const RMSNorm& norm, ConstTensorView x_view, ConstTensorView d_y_view, TensorView target, Executor* executor) {
  using A = Accumulator<T>;
  constexpr std::int64_t kChunk = 128;
  const std::int64_t width = norm.width();
  const Rows<const T> x(x_view), d_y(d_y_view);
  const std::int64_t chunks = (x.count() + kChunk - 1) / kChunk;
  std::vector<double> sums(static_cast<std::size_t>(chunks * width));
  parallel_for(chunks, row_grain(width * kChunk, 3), executor, [&](std::int64_t first, std::int64_t last) {
    ComputedRow<const T> x_row(x, width), d_y_row(d_y, width);
    for (std::int64_t chunk = first; chunk < last; ++chunk) {
      double* const total = sums.data() + chunk * width;
      for (std::int64_t row = chunk * kChunk, end = std::min(row + kChunk, x.count()); row < end; ++row) {
        const A *const from = x_row.load_row(row), *const d = d_y_row.load_row(row);
        const A r = inverse_root(width, from, norm.epsilon);
        for (std::int64_t e = 0; e < width; ++e) total[e] += static_cast<double>(d[e]) * static_cast<double>(from[e] * r);
      }
    }
  });
  for (std::int64_t e = 0; e < width; ++e) {
    double total = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) total += sums[static_cast<std::size_t>(chunk * width + e)];
    target.data<T>()[e * target.stride(0)] = store<T>(total);
  }
}

}  // namespace

RMSNorm::RMSNorm(const RMSNormConfig& config) : epsilon(config.epsilon) {
  require(config.width >= 1, "RMSNorm: width is ", config.width, "; it must be at least 1");
  require(is_floating(config.dtype), "RMSNorm: the parameters must be floating, not ", config.dtype);
  weight = Tensor(config.dtype, {config.width});
  fill(weight, 1);
  require_parameters("RMSNorm", *this);
}

RMSNorm::RMSNorm(Tensor weight_, double epsilon_) : weight(std::move(weight_)), epsilon(epsilon_) { require_parameters("RMSNorm", *this); }

void RMSNorm::forward(ConstTensorView x, TensorView y, const RunOptions& options) const {
  constexpr const char* kOperation = "RMSNorm.forward";
  require_parameters(kOperation, *this);
  require_rows(kOperation, {"x", x}, "width", width(), weight.dtype());
  require_exactly(kOperation, {"y", y}, x.shape(), weight.dtype());
  require_separate(kOperation, {"y", y}, {{"x", x}, {"weight", weight}});
  if (y.numel() == 0) return;
  dispatch_floating(weight.dtype(), [&](auto type) { normalise<typename decltype(type)::type>(*this, x, y, options.executor); });
}

void RMSNorm::backward(ConstTensorView x, ConstTensorView d_y, const Gradients<RMSNorm>& gradients, const RunOptions& options) const {
  constexpr const char* kOperation = "RMSNorm.backward";
  const TensorView d_x = gradients.x;
  RMSNorm* const grads = gradients.parameters;
  require_parameters(kOperation, *this);
  require_rows(kOperation, {"x", x}, "width", width(), weight.dtype());
  require_exactly(kOperation, {"d_y", d_y}, x.shape(), weight.dtype());
  if (d_x) {
    require_exactly(kOperation, {"d_x", d_x}, x.shape(), weight.dtype());
    require_separate(kOperation, {"d_x", d_x}, {{"x", x}, {"d_y", d_y}, {"weight", weight}});
  }
  if (grads != nullptr) require_gradients(kOperation, *this, *grads, {{"x", x}, {"d_y", d_y}}, {"d_x", d_x});
  if (width() == 0) return;
  dispatch_floating(weight.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    if (d_x && d_x.numel() > 0) backward_input<T>(*this, x, d_y, d_x, gradients.x_write == Write::add, options.executor);
    if (grads != nullptr) backward_weight<T>(*this, x, d_y, grads->weight, options.executor);
  });
}

}  // namespace polyhead::nn
