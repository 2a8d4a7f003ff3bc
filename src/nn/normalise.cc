#include "nn/normalise.h"

#include <cmath>

#include "core/parallel.h"
#include "cpu/select.h"
#include "nn/check.h"
#include "nn/elementwise.h"
#include "nn/parameter_gradient.h"
#include "nn/rows.h"

namespace polyhead::nn {
namespace {

// A normalised row.
template <class A>
struct Normalised {
  std::vector<A> values;  // (x - mean) / deviation
  A inverse_deviation;

  template <class T>
  void load_row(const Rows<const T>& x, std::int64_t row, const Normalisation& norm) {
    const auto width = static_cast<std::int64_t>(values.size());
    A* v = values.data();
    for (std::int64_t e = 0; e < width; ++e) v[e] = load(x.at(row, e));
    if (norm.centred) {
      const A mean = sum<A>(width, [v](std::int64_t e) { return v[e]; }) / static_cast<A>(width);
      for (std::int64_t e = 0; e < width; ++e) v[e] -= mean;  // the mean is subtracted before squaring, because E[x^2] - E[x]^2 would cancel
    }
    const A variance = sum<A>(width, [v](std::int64_t e) { return v[e] * v[e]; }) / static_cast<A>(width);
    inverse_deviation = 1 / std::sqrt(variance + static_cast<A>(norm.epsilon));
    for (std::int64_t e = 0; e < width; ++e) v[e] *= inverse_deviation;
  }
};

template <class T>
std::vector<Accumulator<T>> load_vector(ConstTensorView parameter, std::int64_t width, double offset = 0) {
  std::vector<Accumulator<T>> values(static_cast<std::size_t>(width));
  if (!parameter) return values;
  for (std::int64_t e = 0; e < width; ++e) values[static_cast<std::size_t>(e)] = load(parameter.data<T>()[e * parameter.stride(0)]) + static_cast<Accumulator<T>>(offset);
  return values;
}

// Normalises tensors of a dtype that is computed in float32. If sums_view is given, T is float, and the function computes sums += x and y = norm(sums).
template <class T>
void normalise_floats(const Normalisation& norm, ConstTensorView x_view, TensorView sums_view, TensorView y_view, Executor* executor) {
  const std::int64_t width = norm.weight.extent(0);
  const Rows<const T> x(x_view);
  const Rows<T> sums(sums_view ? sums_view : y_view), y(y_view);
  const auto weight = load_vector<T>(norm.weight, width, norm.weight_offset), bias = load_vector<T>(norm.bias, width);
  parallel_for(x.count(), row_grain(width, 1), executor, [&](std::int64_t first, std::int64_t last) {
    const auto normalise_row = cpu::current_kernels_of<cpu::NormKernels>().normalise_row;
    ComputedRow<const T> x_row(x, width);
    ComputedRow<T> sums_row(sums, width), y_row(y, width);
    for (std::int64_t row = first; row < last; ++row) {
      cpu::NormRow one{.width = width,
                       .centred = norm.centred,
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
void normalise_all(const Normalisation& norm, ConstTensorView x_view, TensorView y_view, Executor* executor) {
  using A = Accumulator<T>;
  if constexpr (std::is_same_v<A, float>) return normalise_floats<T>(norm, x_view, {}, y_view, executor);
  const std::int64_t width = norm.weight.extent(0);
  const Rows<const T> x(x_view);
  const Rows<T> y(y_view);
  const auto weight = load_vector<T>(norm.weight, width, norm.weight_offset), bias = load_vector<T>(norm.bias, width);
  parallel_for(x.count(), row_grain(width, 2), executor, [&](std::int64_t first, std::int64_t last) {
    Normalised<A> n{std::vector<A>(weight.size()), 0};
    const A *v = n.values.data(), *w = weight.data(), *b = bias.data();
    for (std::int64_t row = first; row < last; ++row) {
      n.load_row(x, row, norm);
      for (std::int64_t e = 0; e < width; ++e) y.at(row, e) = store<T>(v[e] * w[e] + b[e]);
    }
  });
}

template <class T>
struct Backward {
  const Normalisation& norm;
  std::vector<Accumulator<T>> weight;
  Rows<const T> x, d_y;
  const Rows<T>* d_x;  // nullptr: not computed
  bool add;            // true: the gradient is added to d_x; false: it replaces d_x
};

// Computes the gradients for some rows. With the normalised row n and g = d_y (weight + weight_offset): d_x = (g - mean(g) - n mean(g n)) / deviation, or d_x
// += this if b.add is true. If the pointers are not nullptr, d_weight += d_y n and d_bias += d_y.
void backward_rows(const Backward<double>& b, std::int64_t first, std::int64_t last, double* d_weight, double* d_bias) {
  const auto width = static_cast<std::int64_t>(b.weight.size());
  Normalised<double> n{std::vector<double>(b.weight.size()), 0};
  std::vector<double> gradient(b.weight.size());
  const double* const v = n.values.data();
  double* const g = gradient.data();
  for (std::int64_t row = first; row < last; ++row) {
    n.load_row(b.x, row, b.norm);
    for (std::int64_t e = 0; d_weight != nullptr && e < width; ++e) {
      d_weight[e] += b.d_y.at(row, e) * v[e];
      if (d_bias != nullptr) d_bias[e] += b.d_y.at(row, e);
    }
    if (b.d_x == nullptr) continue;
    for (std::int64_t e = 0; e < width; ++e) g[e] = b.d_y.at(row, e) * b.weight[static_cast<std::size_t>(e)];
    const double mean = b.norm.centred ? sum<double>(width, [g](std::int64_t e) { return g[e]; }) / static_cast<double>(width) : 0;
    const double along = sum<double>(width, [g, v](std::int64_t e) { return g[e] * v[e]; }) / static_cast<double>(width);
    for (std::int64_t e = 0; e < width; ++e) {
      double& target = b.d_x->at(row, e);
      target = (g[e] - mean - v[e] * along) * n.inverse_deviation + (b.add ? target : 0);
    }
  }
}

// Computes the same gradients with the kernels. For dtypes that are computed in float32.
template <class T>
void backward_rows(const Backward<T>& b, std::int64_t first, std::int64_t last, double* d_weight, double* d_bias) {
  constexpr int kRows = cpu::NormBackwardRows::kRows;
  const auto width = static_cast<std::int64_t>(b.weight.size());
  std::vector<ComputedRow<const T>> x(kRows, {b.x, width}), d_y(kRows, {b.d_y, width});
  auto d_x = b.d_x != nullptr ? std::vector<ComputedRow<T>>(kRows, {*b.d_x, width}) : std::vector<ComputedRow<T>>{};
  const auto kernel = cpu::current_kernels_of<cpu::NormKernels>().backward_rows;
  for (std::int64_t start = first; start < last; start += kRows) {
    cpu::NormBackwardRows rows{.width = width,
                               .centred = b.norm.centred,
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

// Computes the gradients of all rows. Threads take pieces of a fixed number of rows. The pieces' sums of d_weight and d_bias are added in order, so that their
// bits do not depend on the threads. The sums are float64 for every dtype, because there may be many rows, and their terms cancel.
template <class T>
void backward_all(const Backward<T>& b, TensorView d_weight, TensorView d_bias, Write parameters_write, const RunOptions& options) {
  constexpr std::int64_t kChunk = 128;
  const auto width = static_cast<std::int64_t>(b.weight.size());
  const std::int64_t chunks = (b.x.count() + kChunk - 1) / kChunk;
  const std::int64_t size = d_bias ? 2 * width : d_weight ? width : 0;  // the number of sums of a piece: for d_weight, then for d_bias
  std::vector<double> sums(static_cast<std::size_t>(chunks * size));
  parallel_for(chunks, row_grain(width * kChunk, 4), options.executor, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t chunk = first; chunk < last; ++chunk) {
      double* const part = sums.data() + chunk * size;
      backward_rows(b, chunk * kChunk, std::min((chunk + 1) * kChunk, b.x.count()), d_weight ? part : nullptr, d_bias ? part + width : nullptr);
    }
  });
  const auto write = [&](TensorView gradient, const double* part) {
    write_gradient(gradient, parameters_write, options, [&](TensorView target) {
      for (std::int64_t e = 0; e < width; ++e) {
        double total = 0;
        for (std::int64_t chunk = 0; chunk < chunks; ++chunk) total += part[chunk * size + e];
        target.data<T>()[e * target.stride(0)] = store<T>(total);
      }
    });
  };
  if (d_weight) write(d_weight, sums.data());
  if (d_bias) write(d_bias, sums.data() + width);
}

}  // namespace

void require_norm(const Normalisation& norm) {
  require_weight(norm.operation, norm.weight, 1, "[width]");
  if (norm.bias) require_exactly(norm.operation, {"bias", norm.bias}, norm.weight.shape(), norm.weight.dtype());
  require(norm.epsilon >= 0, norm.operation, ": epsilon is ", norm.epsilon, "; it may not be negative");
}

void normalise(const Normalisation& norm, ConstTensorView x, TensorView y, Executor* executor) {
  require_norm(norm);
  const DType dtype = norm.weight.dtype();
  require_rows(norm.operation, {"x", x}, "width", norm.weight.extent(0), dtype);
  require_exactly(norm.operation, {"y", y}, x.shape(), dtype);
  require_no_overlap(norm.operation, {"y", y}, {{"x", x}, {"weight", norm.weight}, {"bias", norm.bias}});
  if (y.numel() == 0) return;
  dispatch_floating(dtype, [&](auto type) { normalise_all<typename decltype(type)::type>(norm, x, y, executor); });
}

void add_and_normalise(const Normalisation& norm, ConstTensorView x, TensorView sums, TensorView y, Executor* executor) {
  require_norm(norm);
  const DType dtype = norm.weight.dtype();
  require_rows(norm.operation, {"x", sums}, "width", norm.weight.extent(0), dtype);
  require_exactly(norm.operation, {"the summand", x}, sums.shape(), dtype);
  require_exactly(norm.operation, {"y", y}, sums.shape(), dtype);
  if (dtype == DType::f32 && sums.numel() > 0) return normalise_floats<float>(norm, x, sums, y, executor);
  add(x, sums, executor);
  normalise(norm, sums, y, executor);
}

void norm_backward(const Normalisation& norm, ConstTensorView x, ConstTensorView d_y, TensorView d_x, Write x_write, TensorView d_weight, TensorView d_bias,
                   Write parameters_write, const RunOptions& options) {
  const DType dtype = norm.weight.dtype();
  const std::int64_t width = norm.weight.extent(0);
  require_rows(norm.operation, {"x", x}, "width", width, dtype);
  require_exactly(norm.operation, {"d_y", d_y}, x.shape(), dtype);
  if (d_x) {
    require_exactly(norm.operation, {"d_x", d_x}, x.shape(), dtype);
    require_no_overlap(norm.operation, {"d_x", d_x}, {{"x", x}, {"d_y", d_y}, {"weight", norm.weight}});
  }
  if (width == 0) return;
  dispatch_floating(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto run = [&](const Rows<T>* d_x_rows) {
      backward_all(Backward<T>{norm, load_vector<T>(norm.weight, width, norm.weight_offset), Rows<const T>(x), Rows<const T>(d_y), d_x_rows, x_write == Write::add},
                   d_weight, d_bias, parameters_write, options);
    };
    if (d_x && d_x.numel() > 0) {
      const Rows<T> rows(d_x);
      run(&rows);
    } else if (d_weight) {
      run(nullptr);
    }
  });
}

}  // namespace polyhead::nn
