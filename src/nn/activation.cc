#include "polyhead/nn/activation.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/join.h"
#include "core/parallel.h"
#include "cpu/select.h"
#include "nn/check.h"
#include "nn/rows.h"

namespace polyhead::nn {
namespace {

static_assert(std::ranges::all_of(kActivations,
                                  [](const auto& row) { return &row == &kActivations[static_cast<std::size_t>(row.activation)]; }));

// The logistic function 1 / (1 + exp(-x)) and its derivative, computed from exp(-|x|) to avoid overflow and cancellation.
template <class A>
struct Logistic {
  explicit Logistic(A x) {
    const A small = std::exp(-std::abs(x)), total = 1 + small;
    value = (x < 0 ? small : A{1}) / total;
    derivative = small / (total * total);
  }
  A value, derivative;
};

// Each activation function below has value(x) and backward(x, d_y).
struct Relu {
  static auto value(auto x) { return x < 0 ? decltype(x){0} : x; }
  static auto backward(auto x, auto d_y) { return x <= 0 ? decltype(x){0} : d_y; }
};

struct Gelu {
  // Returns Phi(x), the cumulative normal distribution. It uses erfc, because 1 + erf(x) would cancel for negative x.
  template <class A>
  static A cumulative(A x) {
    return std::erfc(-x / std::numbers::sqrt2_v<A>) / 2;
  }
  static auto value(auto x) { return x * cumulative(x); }
  template <class A>
  static A backward(A x, A d_y) {
    const A density = std::exp(-x * x / 2) * std::numbers::inv_sqrtpi_v<A> / std::numbers::sqrt2_v<A>;
    return (cumulative(x) + x * density) * d_y;
  }
};

// GELU with tanh: x (1 + tanh(u)) / 2, where (1 + tanh(u)) / 2 is the logistic function of 2u.
struct GeluTanh {
  template <class A>
  static constexpr A kFactor = 2 * std::numbers::sqrt2_v<A>* std::numbers::inv_sqrtpi_v<A>;
  template <class A>
  static constexpr A kCubic = A(0.044715);

  template <class A>
  static Logistic<A> step(A x) {
    return Logistic<A>(kFactor<A> * (x + kCubic<A> * x * x * x));
  }
  static auto value(auto x) { return x * step(x).value; }
  template <class A>
  static A backward(A x, A d_y) {
    const Logistic<A> s = step(x);
    // where the derivative is 0, x or x * x may be infinite, and 0 * inf would be NaN
    const A product = s.derivative == 0 ? A{0} : x * s.derivative * kFactor<A> * (1 + 3 * kCubic<A> * x * x);
    return (s.value + product) * d_y;
  }
};

struct Sigmoid {
  // The value is computed in float64. float32 would round three times, and the error would show in a gate's gradient, which is a sum over many rows.
  static double value(auto x) { return Logistic<double>(x).value; }
  static auto backward(auto x, auto d_y) { return Logistic(x).derivative * d_y; }
};

struct Silu {
  static auto value(auto x) { return x * Logistic(x).value; }
  template <class A>
  static A backward(A x, A d_y) {
    const Logistic<A> s(x);
    return (s.value + (s.derivative == 0 ? A{0} : x * s.derivative)) * d_y;  // where the derivative is 0, x may be infinite, and 0 * inf would be NaN
  }
};

struct QuickGelu {
  template <class A>
  static constexpr A kFactor = A(1.702);

  template <class A>
  static A value(A x) {
    return x * Logistic<A>(kFactor<A> * x).value;
  }
  template <class A>
  static A backward(A x, A d_y) {
    const A u = kFactor<A> * x;
    const Logistic<A> s(u);
    return (s.value + (s.derivative == 0 ? A{0} : u * s.derivative)) * d_y;
  }
};

struct Tanh {
  static auto value(auto x) { return std::tanh(x); }
  static auto backward(auto x, auto d_y) { return 4 * Logistic(2 * x).derivative * d_y; }
};

// Calls f(function, kernel) for an activation. `kernel` computes the activation for float32; it is nullptr if there is no such kernel.
template <class F>
void dispatch_activation(Activation activation, const F& f) {
  const auto& kernels = cpu::current_kernels_of<cpu::ActivationKernels>();
  switch (activation) {
    case Activation::relu:
      return f(Relu{}, nullptr);
    case Activation::gelu:
      return f(Gelu{}, &kernels.gelu);
    case Activation::gelu_tanh:
      return f(GeluTanh{}, &kernels.gelu_tanh);
    case Activation::sigmoid:
      return f(Sigmoid{}, &kernels.sigmoid);
    case Activation::tanh:
      return f(Tanh{}, &kernels.tanh);
    case Activation::silu:
      return f(Silu{}, &kernels.silu);
    case Activation::quick_gelu:
      return f(QuickGelu{}, &kernels.quick_gelu);
  }
  fail(ErrorCode::invalid_argument, "there is no activation number ", static_cast<int>(activation));
}

template <class T, class Kernel>
constexpr bool kByKernel = std::is_same_v<T, float> && !std::is_null_pointer_v<Kernel>;

// Calls f(first, count) for the elements of a row. If the row is contiguous, it calls f once, else once for each element. The kernels give the same bits in
// both cases.
template <class F>
void for_each_run(std::int64_t width, bool in_lines, const F& f) {
  if (in_lines && width > 0) return f(std::int64_t{0}, width);
  for (std::int64_t e = 0; e < width; ++e) f(e, std::int64_t{1});
}

constexpr double kNanoseconds = 10;  // time for an exponential or an error function of one element

// Returns the view as rows; a tensor without axes is one row of one element.
template <class View>
View as_rows(View view) {
  return view.rank() == 0 ? view.unsqueeze(0) : view;
}

}  // namespace

Activation find_activation(std::string_view name) {
  const auto row = std::ranges::find(kActivations, name, &ActivationInfo::name);
  if (row != kActivations.end()) return row->activation;
  fail(ErrorCode::invalid_argument, "there is no activation \"", name, "\"; there are ", join(kActivations, &ActivationInfo::name));
}

void activate(Activation activation, ConstTensorView x_view, TensorView y_view, Executor* executor) {
  constexpr const char* kOperation = "activate";
  require(static_cast<bool>(x_view), kOperation, ": x is missing");
  require_output(kOperation, {"y", y_view}, {"x", x_view}, {});
  dispatch_floating(x_view.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Rows<const T> x(as_rows(x_view));
    const Rows<T> y(as_rows(y_view));
    const std::int64_t width = as_rows(x_view).extent(-1);
    const bool in_lines = x.contiguous() && y.contiguous();
    dispatch_activation(activation, [&](auto function, auto kernel) {
      parallel_for(x.count(), row_grain(width, kNanoseconds), executor, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t row = first; row < last; ++row) {
          if constexpr (kByKernel<T, decltype(kernel)>) {
            for_each_run(width, in_lines, [&](auto e, std::int64_t count) { kernel->value(count, &x.at(row, e), &y.at(row, e)); });
          } else {
            for (std::int64_t e = 0; e < width; ++e) y.at(row, e) = store<T>(function.value(load(x.at(row, e))));
          }
        }
      });
    });
  });
}

void activate_backward(Activation activation, ConstTensorView x_view, ConstTensorView d_y_view, TensorView d_x_view, Write d_x_write,
                       Executor* executor) {
  constexpr const char* kOperation = "activate_backward";
  require(static_cast<bool>(x_view), kOperation, ": x is missing");
  require_exactly(kOperation, {"d_y", d_y_view}, x_view.shape(), x_view.dtype());
  require_output(kOperation, {"d_x", d_x_view}, {"d_y", d_y_view}, {{"x", x_view}});
  dispatch_floating(x_view.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Rows<const T> x(as_rows(x_view)), d_y(as_rows(d_y_view));
    const Rows<T> d_x(as_rows(d_x_view));
    const std::int64_t width = as_rows(x_view).extent(-1);
    const bool add = d_x_write == Write::add, in_lines = x.contiguous() && d_y.contiguous() && d_x.contiguous();
    dispatch_activation(activation, [&](auto function, auto kernel) {
      parallel_for(x.count(), row_grain(width, 2 * kNanoseconds), executor, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t row = first; row < last; ++row) {
          if constexpr (kByKernel<T, decltype(kernel)>) {
            for_each_run(width, in_lines, [&](auto e, std::int64_t count) {
              kernel->backward(count, &x.at(row, e), &d_y.at(row, e), add, &d_x.at(row, e));
            });
            continue;
          }
          for (std::int64_t e = 0; e < width; ++e) {
            T& target = d_x.at(row, e);
            const auto gradient = function.backward(load(x.at(row, e)), load(d_y.at(row, e)));
            target = store<T>(add ? load(target) + gradient : gradient);
          }
        }
      });
    });
  });
}

}  // namespace polyhead::nn
