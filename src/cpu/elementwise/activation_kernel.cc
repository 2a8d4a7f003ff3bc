// sigmoid, tanh, SiLU and the GELUs (Hendrycks and Gimpel 2016) of float32, computed in vectors of float64; float_lanes.h computes some of them in float32
// instead. With float64 a result is rounded once instead of three or four times. This matters in a gate's gradient, which sums over many rows. The kernels are
// 5 to 14 times as fast as calls of the C library.
#include "cpu/elementary.h"
#include "cpu/elementwise/float_lanes.h"
#include "cpu/elementwise/kernels.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

using Lanes = Vector<double>;
constexpr int kCount = kLanes<double>;
typedef float Narrow __attribute__((vector_size(POLYHEAD_VECTOR_BYTES / 2), aligned(alignof(float)), may_alias));

POLYHEAD_INLINE Lanes magnitude(Lanes x) { return x < 0.0 ? -x : x; }

// Returns 1 / x for 1 <= x < 1e300. A division of 8 lanes takes 24 cycles. Two steps of Newton's method are faster: they turn a guess with 14 exact bits into
// 52.
POLYHEAD_INLINE Lanes reciprocal(Lanes x) {
  if constexpr (!kHasElementary) return 1.0 / x;
  Lanes y = reciprocal_guess<double>(x);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) y += y * (1.0 - x * y);
  return y;
}

// Returns exp(x) for x <= 0 with a relative error of 5e-11, far below the rounding error of float32. The result is 0 where it would be subnormal, and NaN for
// NaN. The method is that of exp_of_negative() in cpu/elementary.h with a polynomial half as long.
POLYHEAD_INLINE Lanes exp_below_one(Lanes x) {
  using P = PowerOfTwo<double>;
  constexpr double c[] = {0.6931471807045316,    0.24022651066562176,   0.05550410365990991,   0.009618038131886079,
                          0.0013333935055233359, 0.0001546675637897912, 1.5196156767966453e-05};
  const Lanes shifted = x * P::log2_e + P::magic, n = shifted - P::magic, f = x * P::log2_e - n;
  Lanes sum = broadcast(c[6]);
#pragma GCC unroll 8
  for (int i = 5; i >= 0; --i) sum = sum * f + c[i];
  const Lanes power = sum * f + 1.0;
  const Lanes scaled = (Lanes)(((Vector<std::int64_t>)shifted << P::mantissa) + (Vector<std::int64_t>)power);
  return n < P::lowest ? Lanes{} : scaled + x * 0.0;
}

// The logistic function 1 / (1 + exp(-x)) and its derivative. Only exp(-|x|) is computed, so no term overflows or cancels.
struct Logistic {
  POLYHEAD_INLINE explicit Logistic(Lanes x) {
    const Lanes small = exp_below_one(-magnitude(x)), inverse = reciprocal(small + 1.0);
    value = (x < 0.0 ? small : broadcast(1.0)) * inverse;
    derivative = small * inverse * inverse;
  }
  Lanes value, derivative;
};

struct Sigmoid {
  static POLYHEAD_INLINE Lanes value(Lanes x) { return Logistic(x).value; }
  static POLYHEAD_INLINE Lanes derivative(Lanes x) { return Logistic(x).derivative; }
};

struct Silu {
  static POLYHEAD_INLINE Lanes value(Lanes x) { return x * Logistic(x).value; }
  static POLYHEAD_INLINE Lanes derivative(Lanes x) {
    const Logistic s(x);
    return s.value + (s.derivative == 0.0 ? Lanes{} : x * s.derivative);  // for infinite x, the product would be infinity times 0, which is NaN
  }
};

struct QuickGelu {
  static constexpr double kFactor = 1.702;
  static POLYHEAD_INLINE Lanes value(Lanes x) { return x * Logistic(x * kFactor).value; }
  static POLYHEAD_INLINE Lanes derivative(Lanes x) {
    const Logistic s(x * kFactor);
    return s.value + (s.derivative == 0.0 ? Lanes{} : x * kFactor * s.derivative);  // for infinite x, the product would be infinity times 0, which is NaN
  }
};

struct Tanh {
  static POLYHEAD_INLINE Lanes value(Lanes x) { return tanh<double>(x); }
  static POLYHEAD_INLINE Lanes derivative(Lanes x) { return Logistic(x * 2.0).derivative * 4.0; }
};

// The normal distribution at x, for Gelu. With z = |x| / sqrt 2: bell = exp(-z^2), and `cumulative` is the distribution function, erfc(z) / 2 for x < 0 and
// 1 - erfc(z) / 2 otherwise; (1 + erf(x / sqrt 2)) / 2 would cancel for negative x. erfc(z) = exp(-z^2) P((z - 3)/(z + 3)) / (1 + 2 z), where P is a minimax
// polynomial. The relative error of erfc is 4e-9, a fifteenth of the rounding error of float32.
struct Normal {
  POLYHEAD_INLINE explicit Normal(Lanes x) {
    constexpr double kP[] = {1.253008056125129,     -0.13562106800522788,   -0.047562144147475324,  0.12964407911227388,
                             -0.11927538086053333,  0.06831679493925781,    -0.023763274339911454,  0.0024985459671970026,
                             0.0018747284391560748, -0.0007258424038308838, -9.240323450321454e-05, 7.707618283603657e-05};
    constexpr double kSqrtHalf = 0.7071067811865476, kMost = 28;  // z is limited to kMost, because exp(-28^2) is 0 already
    const Lanes all = magnitude(x) * kSqrtHalf, z = all > kMost ? broadcast(kMost) : all;
    const Lanes near = z + 3.0, twice = z * 2.0 + 1.0, both = reciprocal(near * twice);  // one reciprocal serves both denominators, z + 3 and 1 + 2 z
    const Lanes p = (z - 3.0) * (twice * both);
    Lanes sum = broadcast(kP[11]);
#pragma GCC unroll 16
    for (int i = 10; i >= 0; --i) sum = sum * p + kP[i];
    bell = exp_below_one(-z * z);
    const Lanes tail = bell * sum * 0.5 * (near * both);
    cumulative = x < 0.0 ? tail : 1.0 - tail;
  }
  Lanes bell, cumulative;
};

struct Gelu {
  static POLYHEAD_INLINE Lanes value(Lanes x) { return x * Normal(x).cumulative; }
  static POLYHEAD_INLINE Lanes derivative(Lanes x) {
    constexpr double kDensity = 0.3989422804014327;  // 1 / sqrt(2 pi)
    const Normal normal(x);
    return normal.cumulative + x * normal.bell * kDensity;
  }
};

// GELU with tanh: x (1 + tanh(u)) / 2, where (1 + tanh(u)) / 2 is the logistic function of 2u.
struct GeluTanh {
  static constexpr double kFactor = 1.5957691216057308, kCubic = 0.044715;  // kFactor is 2 sqrt(2 / pi)
  static POLYHEAD_INLINE Lanes twice_u(Lanes x) { return (x + x * x * x * kCubic) * kFactor; }
  static POLYHEAD_INLINE Lanes value(Lanes x) { return x * Logistic(twice_u(x)).value; }
  static POLYHEAD_INLINE Lanes derivative(Lanes x) {
    const Logistic step(twice_u(x));
    const Lanes product = x * step.derivative * kFactor * (x * x * (3 * kCubic) + 1.0);
    return step.value + (step.derivative == 0.0 ? Lanes{} : product);  // for infinite x, the product would be infinity times 0, which is NaN
  }
};

// Loads a vector and widens it to float64. At the end of a row, only the first `left` lanes are loaded.
POLYHEAD_INLINE Lanes widen_lanes(const float* x, std::int64_t left) {
  if (left >= kCount) return __builtin_convertvector(*reinterpret_cast<const Narrow*>(x), Lanes);
  Lanes wide{};
  for (std::int64_t i = 0; i < left; ++i) wide[i] = x[i];
  return wide;
}
POLYHEAD_INLINE void narrow_lanes(Lanes x, std::int64_t left, float* to) {
  if (left >= kCount) {
    *reinterpret_cast<Narrow*>(to) = __builtin_convertvector(x, Narrow);
    return;
  }
  for (std::int64_t i = 0; i < left; ++i) to[i] = static_cast<float>(x[i]);
}

template <class F>
void value(std::int64_t count, const float* x, float* y) {
  for (std::int64_t i = 0; i < count; i += kCount) narrow_lanes(F::value(widen_lanes(x + i, count - i)), count - i, y + i);
}

template <class F>
void backward(std::int64_t count, const float* x, const float* d_y, bool add, float* d_x) {
  for (std::int64_t i = 0; i < count; i += kCount) {
    const Lanes d = F::derivative(widen_lanes(x + i, count - i)) * widen_lanes(d_y + i, count - i);
    narrow_lanes(add ? d + widen_lanes(d_x + i, count - i) : d, count - i, d_x + i);
  }
}

// Writes y = f(x), computed in whole vectors of float32.
template <Floats (*f)(Floats)>
void value_in_floats(std::int64_t count, const float* x, float* y) {
  constexpr int kWidth = kLanes<float>;
  for (; count >= kWidth; count -= kWidth, x += kWidth, y += kWidth) store_vector<float>(f(load_vector(x)), y);
  float rest[kWidth] = {};
  for (std::int64_t i = 0; i < count; ++i) rest[i] = x[i];
  if (count > 0) store_vector<float>(f(load_vector(rest)), rest);
  for (std::int64_t i = 0; i < count; ++i) y[i] = rest[i];
}

// Writes d_x = f(x, d_y), or adds f(x, d_y) to d_x if `add`, computed in whole vectors of float32.
template <Floats (*f)(Floats, Floats)>
void backward_in_floats(std::int64_t count, const float* x, const float* d_y, bool add, float* d_x) {
  constexpr int kWidth = kLanes<float>;
  const auto one = [add](const float* x_at, const float* d_y_at, float* d_x_at) {
    const Floats d = f(load_vector(x_at), load_vector(d_y_at));
    store_vector<float>(add ? d + load_vector(d_x_at) : d, d_x_at);
  };
  for (; count >= kWidth; count -= kWidth, x += kWidth, d_y += kWidth, d_x += kWidth) one(x, d_y, d_x);
  float rest[3][kWidth] = {};
  for (std::int64_t i = 0; i < count; ++i) rest[0][i] = x[i], rest[1][i] = d_y[i], rest[2][i] = d_x[i];
  if (count > 0) one(rest[0], rest[1], rest[2]);
  for (std::int64_t i = 0; i < count; ++i) d_x[i] = rest[2][i];
}

constexpr bool kInFloats = kHasElementary && kLanes<float> == 16;
constexpr auto sigmoid_value = kInFloats ? value_in_floats<sigmoid> : value<Sigmoid>;
constexpr auto gelu_value = kInFloats ? value_in_floats<gelu> : value<Gelu>;
constexpr auto gelu_derivative = kInFloats ? backward_in_floats<gelu_backward> : backward<Gelu>;

template <class F>
constexpr ActivationKernel kActivationKernel{value<F>, backward<F>};

}  // namespace

extern const ActivationKernels activation_kernels;
constinit const ActivationKernels activation_kernels = {
    {sigmoid_value, backward<Sigmoid>}, kActivationKernel<Tanh>, {gelu_value, gelu_derivative}, kActivationKernel<GeluTanh>, kActivationKernel<Silu>, kActivationKernel<QuickGelu>};

}  // namespace polyhead::cpu::POLYHEAD_ISA
