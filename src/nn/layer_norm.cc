#include "polyhead/nn/layer_norm.h"

#include <cmath>

#include "core/parallel.h"
#include "cpu/select.h"
#include "nn/add_norm.h"
#include "nn/check.h"
#include "nn/elementwise.h"
#include "nn/rows.h"

namespace polyhead::nn {
namespace {

constexpr const char* kForward = "LayerNorm.forward";

void require_parameters(const char* operation, const LayerNorm& norm) {
  require_weight(operation, norm.weight, 1, "[width]");
  if (norm.bias) require_exactly(operation, {"bias", norm.bias}, norm.weight.shape(), norm.weight.dtype());
  require(norm.epsilon >= 0, operation, ": epsilon is ", norm.epsilon, "; it may not be negative");
}

// One row, normalised.
template <class A>
struct Normalised {
  std::vector<A> values;  // (x - mean) / deviation
  A inverse_deviation;

  template <class T>
  void load_row(const Rows<const T>& x, std::int64_t row, double epsilon) {
    const auto width = static_cast<std::int64_t>(values.size());
    A* v = values.data();
    for (std::int64_t e = 0; e < width; ++e) v[e] = load(x.at(row, e));
    const A mean = sum<A>(width, [v](std::int64_t e) { return v[e]; }) / static_cast<A>(width);
    for (std::int64_t e = 0; e < width; ++e) v[e] -= mean;  // before squaring: E[x^2] - E[x]^2 would cancel
    const A variance = sum<A>(width, [v](std::int64_t e) { return v[e] * v[e]; }) / static_cast<A>(width);
    inverse_deviation = 1 / std::sqrt(variance + static_cast<A>(epsilon));
    for (std::int64_t e = 0; e < width; ++e) v[e] *= inverse_deviation;
  }
};

template <class T>
std::vector<Accumulator<T>> load_vector(const Tensor& parameter, std::int64_t width) {
  std::vector<Accumulator<T>> values(static_cast<std::size_t>(width));
  if (!parameter) return values;
  const ConstTensorView view = parameter;
  for (std::int64_t e = 0; e < width; ++e) values[static_cast<std::size_t>(e)] = load(view.data<T>()[e * view.stride(0)]);
  return values;
}

// For dtypes computed in float32. If sums_view is given: sums += x, then y = norm(sums); T is then float.
template <class T>
void normalise_floats(const LayerNorm& norm, ConstTensorView x_view, TensorView sums_view, TensorView y_view, Executor* executor) {
  const std::int64_t width = norm.width();
  const Rows<const T> x(x_view);
  const Rows<T> sums(sums_view ? sums_view : y_view), y(y_view);
  const auto weight = load_vector<T>(norm.weight, width), bias = load_vector<T>(norm.bias, width);
  parallel_for(x.count(), row_grain(width, 1), executor, [&](std::int64_t first, std::int64_t last) {
    const auto normalise_row = cpu::current_kernels().norm.normalise_row;
    ComputedRow<const T> x_row(x, width);
    ComputedRow<T> sums_row(sums, width), y_row(y, width);
    for (std::int64_t row = first; row < last; ++row) {
      cpu::NormRow one{.width = width,
                       .epsilon = static_cast<float>(norm.epsilon),
                       .weight = weight.data(),
                       .bias = bias.data(),
                       .x = x_row.load_row(row),
                       .y = y_row.at(row)};
      if (sums_view) one.added = sums_row.load_row(row), one.sums = sums_row.at(row);
      normalise_row(one);
      if (sums_view) sums_row.put(row);
      y_row.put(row);
    }
  });
}

template <class T>
void normalise(const LayerNorm& norm, ConstTensorView x_view, TensorView y_view, Executor* executor) {
  using A = Accumulator<T>;
  if constexpr (std::is_same_v<A, float>) return normalise_floats<T>(norm, x_view, {}, y_view, executor);
  const std::int64_t width = norm.width();
  const Rows<const T> x(x_view);
  const Rows<T> y(y_view);
  const auto weight = load_vector<T>(norm.weight, width), bias = load_vector<T>(norm.bias, width);
  parallel_for(x.count(), row_grain(width, 2), executor, [&](std::int64_t first, std::int64_t last) {
    Normalised<A> n{std::vector<A>(weight.size()), 0};
    const A *v = n.values.data(), *w = weight.data(), *b = bias.data();
    for (std::int64_t row = first; row < last; ++row) {
      n.load_row(x, row, norm.epsilon);
      for (std::int64_t e = 0; e < width; ++e) y.at(row, e) = store<T>(v[e] * w[e] + b[e]);
    }
  });
}

template <class T>
struct Backward {
  const LayerNorm& norm;
  std::vector<Accumulator<T>> weight;
  Rows<const T> x, d_y;
  const Rows<T>* d_x;  // nullptr: not wanted
  bool add;            // to d_x
};

// The gradients of some rows, with n the normalised row and g = d_y weight: d_x (+)= (g - mean(g) - n mean(g n)) / deviation, and, unless
// they are nullptr, d_weight += d_y n and d_bias += d_y.
void backward_rows(const Backward<double>& b, std::int64_t first, std::int64_t last, double* d_weight, double* d_bias) {
  const auto width = static_cast<std::int64_t>(b.weight.size());
  Normalised<double> n{std::vector<double>(b.weight.size()), 0};
  std::vector<double> gradient(b.weight.size());
  const double* const v = n.values.data();
  double* const g = gradient.data();
  for (std::int64_t row = first; row < last; ++row) {
    n.load_row(b.x, row, b.norm.epsilon);
    for (std::int64_t e = 0; d_weight != nullptr && e < width; ++e) {
      d_weight[e] += b.d_y.at(row, e) * v[e];
      d_bias[e] += b.d_y.at(row, e);
    }
    if (b.d_x == nullptr) continue;
    for (std::int64_t e = 0; e < width; ++e) g[e] = b.d_y.at(row, e) * b.weight[static_cast<std::size_t>(e)];
    const double mean = sum<double>(width, [g](std::int64_t e) { return g[e]; }) / static_cast<double>(width);
    const double along = sum<double>(width, [g, v](std::int64_t e) { return g[e] * v[e]; }) / static_cast<double>(width);
    for (std::int64_t e = 0; e < width; ++e) {
      double& target = b.d_x->at(row, e);
      target = (g[e] - mean - v[e] * along) * n.inverse_deviation + (b.add ? target : 0);
    }
  }
}

// The same by the kernels, for dtypes computed in float32.
template <class T>
void backward_rows(const Backward<T>& b, std::int64_t first, std::int64_t last, double* d_weight, double* d_bias) {
  constexpr int kRows = cpu::NormBackwardRows::kRows;
  const auto width = static_cast<std::int64_t>(b.weight.size());
  std::vector<ComputedRow<const T>> x(kRows, {b.x, width}), d_y(kRows, {b.d_y, width});
  auto d_x = b.d_x != nullptr ? std::vector<ComputedRow<T>>(kRows, {*b.d_x, width}) : std::vector<ComputedRow<T>>{};
  const auto kernel = cpu::current_kernels().norm.backward_rows;
  for (std::int64_t start = first; start < last; start += kRows) {
    cpu::NormBackwardRows rows{.width = width,
                               .rows = static_cast<int>(std::min<std::int64_t>(kRows, last - start)),
                               .epsilon = static_cast<float>(b.norm.epsilon),
                               .weight = b.weight.data(),
                               .x = {},
                               .d_y = {},
                               .add = b.add,
                               .d_weight = d_weight,
                               .d_bias = d_bias};
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows.rows); ++i) {
      const std::int64_t row = start + static_cast<std::int64_t>(i);
      rows.x[i] = x[i].load_row(row);
      rows.d_y[i] = d_y[i].load_row(row);
      if (b.d_x == nullptr) continue;
      if (b.add) d_x[i].load_row(row);
      rows.d_x[i] = d_x[i].at(row);
    }
    kernel(rows);
    for (std::size_t i = 0; b.d_x != nullptr && i < static_cast<std::size_t>(rows.rows); ++i) d_x[i].put(start + static_cast<std::int64_t>(i));
  }
}

// Threads take chunks of rows of a fixed size; the chunks' sums of d_weight and d_bias are added in order, so that no bit depends on the
// threads. Sums are float64 for every storage: there may be many rows, and their terms cancel.
template <class T>
void backward_all(const Backward<T>& b, LayerNorm* grads, Executor* executor) {
  constexpr std::int64_t kChunk = 128;
  const auto width = static_cast<std::int64_t>(b.weight.size());
  const std::int64_t chunks = (b.x.count() + kChunk - 1) / kChunk;
  std::vector<double> sums(static_cast<std::size_t>(grads != nullptr ? chunks * 2 * width : 0));  // [chunk, weight or bias, width]
  parallel_for(chunks, row_grain(width * kChunk, 4), executor, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t chunk = first; chunk < last; ++chunk) {
      double* const weight = grads != nullptr ? sums.data() + chunk * 2 * width : nullptr;
      backward_rows(b, chunk * kChunk, std::min((chunk + 1) * kChunk, b.x.count()), weight, weight != nullptr ? weight + width : nullptr);
    }
  });
  const auto write = [&](TensorView target, const double* part) {
    for (std::int64_t e = 0; e < width; ++e) {
      double total = 0;
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) total += part[chunk * 2 * width + e];
      target.data<T>()[e * target.stride(0)] = store<T>(total);
    }
  };
  if (grads == nullptr) return;
  write(grads->weight, sums.data());
  if (b.norm.bias) write(grads->bias, sums.data() + width);
}

}  // namespace

LayerNorm::LayerNorm(const LayerNormConfig& config) : epsilon(config.epsilon) {
  require(config.width >= 1, "LayerNorm: width is ", config.width, "; it must be at least 1");
  require(is_floating(config.dtype), "LayerNorm: the parameters must be floating, not ", config.dtype);
  weight = Tensor(config.dtype, {config.width});
  fill(weight, 1);
  if (config.bias) bias = Tensor(config.dtype, {config.width});
  require_parameters("LayerNorm", *this);
}

LayerNorm::LayerNorm(Tensor weight_, Tensor bias_, double epsilon_)
    : weight(std::move(weight_)), bias(std::move(bias_)), epsilon(epsilon_) {
  require_parameters("LayerNorm", *this);
}

void LayerNorm::forward(ConstTensorView x, TensorView y, const RunOptions& options) const {
  constexpr const char* kOperation = kForward;
  require_parameters(kOperation, *this);
  require_rows(kOperation, {"x", x}, "width", width(), weight.dtype());
  require_exactly(kOperation, {"y", y}, x.shape(), weight.dtype());
  require_separate(kOperation, {"y", y}, {{"x", x}, {"weight", weight}, {"bias", bias}});
  if (y.numel() == 0) return;
  dispatch_floating(weight.dtype(), [&](auto type) { normalise<typename decltype(type)::type>(*this, x, y, options.executor); });
}

void internal::add_and_normalise(const LayerNorm& norm, ConstTensorView x, TensorView sums, TensorView y, Executor* executor) {
  require_parameters(kForward, norm);
  const DType dtype = norm.weight.dtype();
  require_rows(kForward, {"x", sums}, "width", norm.width(), dtype);
  require_exactly(kForward, {"the summand", x}, sums.shape(), dtype);
  require_exactly(kForward, {"y", y}, sums.shape(), dtype);
  if (dtype == DType::f32 && sums.numel() > 0) return normalise_floats<float>(norm, x, sums, y, executor);
  add(x, sums, executor);
  norm.forward(sums, y, {.executor = executor});
}

void LayerNorm::backward(ConstTensorView x, ConstTensorView d_y, const Gradients<LayerNorm>& gradients, const RunOptions& options) const {
  constexpr const char* kOperation = "LayerNorm.backward";
  const TensorView d_x = gradients.x;
  LayerNorm* const grads = gradients.parameters;
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
    const auto run = [&](const Rows<T>* d_x_rows) {
      backward_all(Backward<T>{*this, load_vector<T>(weight, width()), Rows<const T>(x), Rows<const T>(d_y), d_x_rows, gradients.x_write == Write::add}, grads, options.executor);
    };
    if (d_x && d_x.numel() > 0) {
      const Rows<T> rows(d_x);
      run(&rows);
    } else if (grads != nullptr) {
      run(nullptr);
    }
  });
}

}  // namespace polyhead::nn
