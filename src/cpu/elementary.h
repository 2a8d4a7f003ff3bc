// exp, tanh and log of a vector. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/vector.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// The constants of minimax polynomials 2^f - 1 = f (c1 + f (c2 + ...)) for f in [-1/2, 1/2]. With this form 2^0 is exactly 1. The comments name the largest
// relative error of 2^f.
template <class T>
struct PowerOfTwo;
template <>
struct PowerOfTwo<float> {  // error 2e-9
  static constexpr float c[] = {0x1.62e430p-1f, 0x1.ebfbdcp-3f, 0x1.c6aee8p-5f, 0x1.3b2d32p-7f, 0x1.5f3efap-10f, 0x1.420c32p-13f};
  static constexpr float magic = 0x1.8p23f, log2_e = 0x1.715476p0f, log2_e_low = 0x1.4ae0c0p-26f, ln2_high = 0x1.62ep-1f,
                         ln2_low = 0x1.0bfbe8p-15f, lowest = -126, bias = 127;
  static constexpr int mantissa = 23;
};
template <>
struct PowerOfTwo<double> {  // error 2e-17
  static constexpr double c[] = {0.6931471805599453,     0.24022650695910097,   0.0555041086648216,    0.009618129107606888,
                                 0.0013333558146416936,  0.0001540353044173605, 1.525273382983612e-05, 1.321544258792169e-06,
                                 1.0178062445845774e-07, 7.072585949269223e-09, 4.4549605981865186e-10};
  static constexpr double magic = 0x1.8p52, log2_e = 0x1.71547652b82fep0, log2_e_low = 0x1.777d0ffda0d24p-56;
  static constexpr double ln2_high = 0x1.62e42fefap-1, ln2_low = 0x1.cf79abc9e3b3ap-40, lowest = -1022, bias = 1023;
  static constexpr int mantissa = 52;
};

// Sets `slopes` to (2^f - 1) / f. The loop computes `kCount` vectors at once, so that the processor need not wait for the result of each instruction.
template <class T, int kCount>
POLYHEAD_INLINE void slopes_of_power(const Vector<T> (&f)[kCount], Vector<T> (&slopes)[kCount]) {
  using P = PowerOfTwo<T>;
  constexpr int kTerms = sizeof(P::c) / sizeof(T);
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) slopes[j] = broadcast(P::c[kTerms - 1]);
#pragma GCC unroll 16
  for (int i = kTerms - 2; i >= 0; --i) {
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) slopes[j] = multiply_add<T>(slopes[j], f[j], broadcast(P::c[i]));
  }
}

// The factor of exp(factor x) = 2^(high x + low x), where high + low = factor log2(e). It is stored as a sum of two numbers, because the rounding of a single
// number would cause the largest error of the result.
template <class T>
struct ExpFactor {
  explicit ExpFactor(T of_x)
      : factor(of_x),
        high(factor * PowerOfTwo<T>::log2_e),
        low(static_cast<T>((static_cast<long double>(factor) * 1.44269504088896340735992468100189214L) - static_cast<long double>(high))) {}
  T factor, high, low;
};

// Replaces x by exp(factor x), for factor x <= 64. The result is exactly 0 for -infinity and where it would be subnormal, and NaN for NaN.
// Method: factor x log2(e) = n + f with n an integer. Adding 1.5 * 2^(number of mantissa bits) rounds the number to n and leaves n in the lowest bits; a shift
// moves n to the exponent bits.
template <class T, int kCount>
POLYHEAD_INLINE void exp_of_negative(Vector<T> (&x)[kCount], const ExpFactor<T>& factor) {
  using P = PowerOfTwo<T>;
  Vector<T> shifted[kCount], n[kCount], f[kCount];
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) shifted[j] = multiply_add<T>(x[j], broadcast(factor.high), broadcast(P::magic));
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) n[j] = shifted[j] - P::magic;
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) {
    if constexpr (kFused) {
      f[j] = multiply_add<T>(x[j], broadcast(factor.low), multiply_add<T>(x[j], broadcast(factor.high), -n[j]));  // rounded once, the inner difference is exact
    } else {  // ln 2 is a sum of two numbers; n times the first number is exact (Cody and Waite 1980)
      f[j] = ((x[j] * factor.factor - n[j] * P::ln2_high) - n[j] * P::ln2_low) * P::log2_e;
    }
  }
  Vector<T> slopes[kCount];
  slopes_of_power<T, kCount>(f, slopes);
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) {
    const Vector<T> power = multiply_add<T>(f[j], slopes[j], broadcast(T{1}));
    if constexpr (kHasElementary && std::is_same_v<T, float>) {
      x[j] = times_power_of_two(power, n[j]);
    } else {
      const Vector<T> scaled = (Vector<T>)(((Vector<Bits<T>>)shifted[j] << P::mantissa) + (Vector<Bits<T>>)power);
      // Adding 0 x restores a NaN, whose bits the integer addition has changed.
      x[j] = n[j] < P::lowest ? Vector<T>{} : multiply_add<T>(x[j], broadcast(T{0}), scaled);
    }
  }
}
template <class T>
POLYHEAD_INLINE Vector<T> exp_of_negative(Vector<T> x, const ExpFactor<T>& factor) {
  Vector<T> one[1] = {x};
  exp_of_negative<T, 1>(one, factor);
  return one[0];
}

// power_of_difference() replaces x by 2^(factor x - reference), for results up to 2^64; results that would be subnormal are 0. It needs fewer instructions than
// exp_of_negative() and is as exact, except that the caller has rounded `reference`. It needs a fused multiply-add: otherwise the product would be rounded
// before the subtraction, and the rounding error of a large score would be an error of the exponent.
template <class T>
inline constexpr bool kHasPowerOfDifference = kFused && std::is_same_v<T, float>;

// The reference of power_of_difference() as the sum whole + rest. The whole number changes only the exponent of the result, so it adds no rounding error. Only
// factor x - rest is rounded.
struct PowerReference {
  float whole, rest, power;  // power = 2^-whole
};

// Returns lse log2(e) as the sum of two halves, `whole` and `rest`. The scores that matter lie between 0 (if all attention weights are similar) and lse (if one
// key has most of the weight). For these scores |factor x - rest| is at most half of |lse log2(e)|, and its rounding error is half as large as that of factor x
// - lse log2(e). If |lse log2(e)| is above 64, `whole` is 0 and `rest` is lse log2(e), so that 2^-whole is always a normal number. Scores are multiplied by
// scaled.high, which is factor log2(e) rounded. This function therefore uses the mean of two values for log2(e): the exact value, which is right for scores
// near 0, and scaled.high / factor, which is right for scores near lse. If the factor is 0, it uses the exact value.
POLYHEAD_INLINE PowerReference power_reference(float lse, const ExpFactor<float>& scaled) {
  constexpr double kLog2E = 1.4426950408889634;
  const double of_scores = double{scaled.high} / double{scaled.factor}, log2_e = of_scores > 1.4 && of_scores < 1.5 ? (kLog2E + of_scores) / 2 : kLog2E;
  const double product = lse * log2_e;
  if (!(product >= -64 && product <= 64)) return {0, static_cast<float>(product), 1};
  const float whole = (static_cast<float>(product / 2) + PowerOfTwo<float>::magic) - PowerOfTwo<float>::magic;
  return {whole, static_cast<float>(product - double{whole}), __builtin_ldexpf(1, static_cast<int>(-whole))};
}

template <int kCount>
POLYHEAD_INLINE void power_of_difference(Vector<float> (&x)[kCount], PowerReference reference, float factor) {
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) x[j] = multiply_add<float>(x[j], broadcast(factor), broadcast(-reference.rest));
  if constexpr (kHasElementary) {
    // x = n + f with 0 <= f < 1, and 2^f = 1 + f (c1 + f (c2 + ...)), a minimax polynomial with relative error 2e-9.
    constexpr float c[] = {1, 0x1.62e42cp-1f, 0x1.ebfd58p-3f, 0x1.c68912p-5f, 0x1.3d0b92p-7f, 0x1.46d64cp-10f, 0x1.c54174p-13f};
    constexpr int kTerms = 7;
    Vector<float> f[kCount], power[kCount];
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) f[j] = fraction(x[j]), power[j] = broadcast(c[kTerms - 1]);
#pragma GCC unroll 8
    for (int i = kTerms - 2; i >= 0; --i) {
#pragma GCC unroll 4
      for (int j = 0; j < kCount; ++j) power[j] = multiply_add<float>(power[j], f[j], broadcast(c[i]));
    }
    // 2^-whole is exact, so the product with it rounds nothing. The exponent of the result is x - whole.
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) x[j] = times_power_of_two(power[j] * reference.power, x[j], reference.whole - 126);
  } else {
    // With n = whole + m, adding 1.5 * 2^23 + 127 - whole to n leaves m + 127, the exponent field of 2^m, in the lowest bits. m = -127 gives the number 0.
    const float magic = PowerOfTwo<float>::magic + PowerOfTwo<float>::bias - reference.whole;
    const Vector<float> lowest = broadcast(reference.whole - PowerOfTwo<float>::bias);
    Vector<float> shifted[kCount];
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) {
      x[j] = larger(lowest, x[j]);  // larger() returns its second argument if one is NaN, so a NaN in x stays
      shifted[j] = x[j] + magic;
      x[j] -= shifted[j] - magic;
    }
    Vector<float> slopes[kCount];
    slopes_of_power<float, kCount>(x, slopes);
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) {
      const Vector<float> power = (Vector<float>)((Vector<Bits<float>>)shifted[j] << PowerOfTwo<float>::mantissa);
      x[j] = multiply_add<float>(x[j] * slopes[j], power, power);
    }
  }
}

// Replaces x by exp(factor (x - reference)), for results up to e^64. The result is 0 for -infinity and where it would be subnormal, and NaN for NaN.
template <int kCount, class V, class T>
POLYHEAD_INLINE void exp_of_difference(V (&x)[kCount], T reference, const ExpFactor<T>& factor) {
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) x[j] -= reference;
  if constexpr (kHasElementary && std::is_same_v<T, float>) {
    power_of_difference<kCount>(x, {0, 0, 1}, factor.high);
  } else {
    exp_of_negative<T, kCount>(x, factor);
  }
}

// Returns tanh(x) = sign(x) (1 - e)/(1 + e) with e = exp(-2|x|). The code computes e - 1 directly, so that the relative error stays small for small x.
template <class T>
POLYHEAD_INLINE Vector<T> tanh(Vector<T> x) {
  using P = PowerOfTwo<T>;
  constexpr T kOne = 25;  // |x| is limited to 25, because tanh(x) rounds to 1 in float64 from x = 19.1 on
  const Vector<T> magnitude = x < T{0} ? -x : x;
  const Vector<T> bounded = magnitude > kOne ? broadcast(kOne) : magnitude;
  const Vector<T> high = broadcast(-2 * P::log2_e), low = broadcast(-2 * P::log2_e_low);
  const Vector<T> shifted = multiply_add<T>(bounded, high, broadcast(P::magic)), n = shifted - P::magic;
  const Vector<T> f[1] = {multiply_add<T>(bounded, low, multiply_add<T>(bounded, high, -n))};
  Vector<T> slope[1];
  slopes_of_power<T, 1>(f, slope);
  const Vector<T> scale = (Vector<T>)(((Vector<Bits<T>>)shifted << P::mantissa) + (Vector<Bits<T>>)broadcast(T{1}));
  const Vector<T> less = multiply_add<T>(scale, f[0] * slope[0], scale - T{1});
  const Vector<T> result = -less / (less + T{2});
  return x < T{0} ? -result : result;
}

// Returns log(x) for normal x > 0, NaN and infinity. With x = 2^n m and m in [sqrt(1/2), sqrt(2)), log x = n log 2 + 2 artanh((m - 1)/(m + 1)).
template <class T>
POLYHEAD_INLINE Vector<T> log(Vector<T> x) {
  using P = PowerOfTwo<T>;
  using B = Bits<T>;
  constexpr B kOne = static_cast<B>(P::bias) << P::mantissa;
  constexpr B kSqrtHalf = sizeof(T) == 8 ? static_cast<B>(0x3fe6a09e667f3bcd) : static_cast<B>(0x3f3504f3);
  const Vector<B> bits = (Vector<B>)x - kSqrtHalf;
  const Vector<B> exponent = bits >> P::mantissa;
  const Vector<T> m = (Vector<T>)((Vector<B>)x - (exponent << P::mantissa));
  const Vector<T> n = __builtin_convertvector(exponent, Vector<T>);
  const Vector<T> s = (m - T{1}) / (m + T{1}), z = s * s;  // z < 0.0295
  constexpr int kTerms = sizeof(T) == 8 ? 11 : 5;
  Vector<T> sum = broadcast(T{1} / (2 * kTerms + 1));
#pragma GCC unroll 16
  for (int i = kTerms - 1; i > 0; --i) sum = multiply_add<T>(sum, z, broadcast(T{1} / static_cast<T>(2 * i + 1)));
  const Vector<T> log_m = multiply_add<T>(s + s, z * sum, s + s);
  constexpr T kLn2 = static_cast<T>(0.693147180559945309417),
              kLargest = sizeof(T) == 8 ? static_cast<T>(0x1.fffffffffffffp1023) : static_cast<T>(0x1.fffffep127);
  static_assert(kOne > 0);
  const Vector<T> result = multiply_add<T>(n, broadcast(kLn2), log_m);
  return x <= kLargest ? result : x;
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
