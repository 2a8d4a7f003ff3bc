// Makes a score rule (score_rule.h) from a function of one (query, key) pair and the function's derivative. Both functions compute with the compiler's vector
// types, and are inlined into one loop:
//
//   const auto rule = score_rule([](auto score, auto q, auto k) { return score + score::tanh((k - q) * 0.125F); },   // the new score
//                                [](auto score, auto q, auto k) { return 0 * score + 1; });                          // derivative of the new score by the old score
//   sdpa_forward(tensors, {.score_rule = rule});
//
// The arguments are vectors of float or double: old scores, the query's position and the keys' positions (exact up to 2^24 in float). A function that needs the
// head or the sequence has a fourth parameter `const ScoreTile& tile` and reads tile.head and tile.batch. The compiler flags of your source set the length of
// the vectors: -mavx2 -mfma or -march=native halve the time of a rule.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "polyhead/score_rule.h"

#pragma GCC visibility push(default)
namespace polyhead {

namespace score {

// Source files of one program may be compiled with different flags. Functions with different vector lengths are in different namespaces; otherwise the linker
// would merge them.
#if defined(__AVX512F__)
inline namespace vectors_of_64_bytes {
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline namespace vectors_of_32_bytes {
inline constexpr int kVectorBytes = 32;
#else
inline namespace vectors_of_16_bytes {
inline constexpr int kVectorBytes = 16;
#endif

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));  // NOLINT(modernize-use-using): `using` drops the attribute of a dependent type
};
template <class T>
using Vector = typename VectorOf<T>::type;
template <class V>
using Element = std::remove_cvref_t<decltype(std::declval<V>()[0])>;

// Returns 2^f - 1 for f in [-1/2, 1/2], by the polynomials of the kernels. The relative error is 2e-9 in float and 2e-17 in double.
template <class V>
inline V power_of_two_minus_1(V f) {
  using T = Element<V>;
  constexpr float kFloat[] = {0x1.62e430p-1F, 0x1.ebfbdcp-3F, 0x1.c6aee8p-5F, 0x1.3b2d32p-7F, 0x1.5f3efap-10F, 0x1.420c32p-13F};
  constexpr double kDouble[] = {0.6931471805599453,    0.24022650695910097,   0.0555041086648216,    0.009618129107606888,  0.0013333558146416936, 0.0001540353044173605,
                                1.525273382983612e-05, 1.321544258792169e-06, 1.0178062445845774e-07, 7.072585949269223e-09, 4.4549605981865186e-10};
  if constexpr (sizeof(T) == 4) {
    V sum = V{} + kFloat[5];
    for (int i = 4; i >= 0; --i) sum = sum * f + kFloat[i];
    return sum * f;
  } else {
    V sum = V{} + kDouble[10];
    for (int i = 9; i >= 0; --i) sum = sum * f + kDouble[i];
    return sum * f;
  }
}

// Splits exp(x) for x log2(e) = n + f with an integer n: power = 2^n and rest = 2^f - 1. |n| is less than 2^6 in float and 2^9 in double.
template <class V>
inline void split_power(V x, V& power, V& rest) {
  using T = Element<V>;
  using Integers = decltype(x < x);
  constexpr bool kIsFloat = sizeof(T) == 4;
  constexpr T kMagic = kIsFloat ? T(0x1.8p23) : T(0x1.8p52), kLog2E = T(1.44269504088896340736), kLn2High = kIsFloat ? T(0x1.62ep-1) : T(0x1.62e42fefap-1),
              kLn2Low = kIsFloat ? T(0x1.0bfbe8p-15) : T(0x1.cf79abc9e3b3ap-40);
  const V shifted = x * kLog2E + kMagic, n = shifted - kMagic;
  power = (V)(((Integers)shifted << (kIsFloat ? 23 : 52)) + (Integers)(V{} + T(1)));
  rest = power_of_two_minus_1<V>(((x - n * kLn2High) - n * kLn2Low) * kLog2E);
}

// Returns the sign bits of x. Changing them takes one instruction; a comparison and a choice take three.
template <class V>
inline auto sign_bits(V x) {
  using Integers = decltype(x < x);
  return (Integers)x & (Integers)-V{};
}

template <class V>
inline V abs(V x) {
  return (V)((decltype(x < x))x ^ sign_bits<V>(x));
}

// Returns exp(x); results that would be subnormal become 0.
template <class V>
inline V exp(V x) {
  using T = Element<V>;
  constexpr T kHighest = sizeof(T) == 4 ? T(88) : T(709), kLowest = sizeof(T) == 4 ? T(-87) : T(-708);
  const V bounded = x > kHighest ? V{} + kHighest : x < kLowest ? V{} + kLowest : x;
  V power, rest;
  split_power<V>(bounded, power, rest);
  const V result = power * rest + power;
  return x > kHighest ? V{} + T(__builtin_inf()) : x < kLowest ? V{} : result + x * 0;
}

// Returns tanh(x): |tanh(x)| = (1 - e)/(1 + e) with e = exp(-2|x|). The code computes e - 1 directly, so that the relative error stays small for small x.
template <class V>
inline V tanh(V x) {
  using T = Element<V>;
  const V magnitude = abs<V>(x), bounded = magnitude > T(20) ? V{} + T(20) : magnitude;
  V power, rest;
  split_power<V>(bounded * T(-2), power, rest);
  const V less = power * rest + (power - T(1)), of_magnitude = abs<V>(less / (less + T(2)));
  return (V)((decltype(x < x))of_magnitude | sign_bits<V>(x));
}

template <class F, class T>
inline Vector<T> call(const F& f, Vector<T> score, T query, Vector<T> keys, const ScoreTile& tile) {
  using V = Vector<T>;
  const V queries = V{} + query;
  if constexpr (std::is_invocable_v<const F&, V, V, V, const ScoreTile&>) {
    return V(f(score, queries, keys, tile));
  } else {
    return V(f(score, queries, keys));
  }
}

// Calls step(row, column, query, keys, count) for each vector of the tile's rows. Only the first `count` elements of the vector lie in the row.
template <class T, class Step>
inline void for_each_vector(const ScoreTile& tile, const Step& step) {
  constexpr std::int64_t kWidth = kVectorBytes / static_cast<std::int64_t>(sizeof(T));
  Vector<T> first{};
  for (std::int64_t i = 0; i < kWidth; ++i) first[i] = static_cast<T>(tile.first_key + i);
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    const T query = static_cast<T>(tile.first_query + row);
    Vector<T> keys = first;
    std::int64_t column = 0;
    for (; column + kWidth <= tile.keys; column += kWidth, keys += static_cast<T>(kWidth)) step(row * tile.row_stride + column, query, keys, kWidth);
    if (column < tile.keys) step(row * tile.row_stride + column, query, keys, tile.keys - column);
  }
}

template <class T>
inline Vector<T> load(const T* from, std::int64_t count) {
  Vector<T> x{};
  if (count * static_cast<std::int64_t>(sizeof(T)) == kVectorBytes) {
    std::memcpy(&x, from, kVectorBytes);
  } else {
    std::memcpy(&x, from, static_cast<std::size_t>(count) * sizeof(T));
  }
  return x;
}
template <class T>
inline void store(Vector<T> x, T* to, std::int64_t count) {
  if (count * static_cast<std::int64_t>(sizeof(T)) == kVectorBytes) {
    std::memcpy(to, &x, kVectorBytes);
  } else {
    std::memcpy(to, &x, static_cast<std::size_t>(count) * sizeof(T));
  }
}

template <class T, class F>
inline void change(const F& f, const ScoreTile& tile) {
  T* const scores = static_cast<T*>(tile.scores);
  for_each_vector<T>(tile, [&](std::int64_t at, T query, Vector<T> keys, std::int64_t count) {
    store<T>(call<F, T>(f, load(scores + at, count), query, keys, tile), scores + at, count);
  });
}

template <class T, class D>
inline void differentiate(const D& derivative, const ScoreTile& tile, const void* before) {
  T* const d_scores = static_cast<T*>(tile.scores);
  for_each_vector<T>(tile, [&](std::int64_t at, T query, Vector<T> keys, std::int64_t count) {
    const Vector<T> slope = call<D, T>(derivative, load(static_cast<const T*>(before) + at, count), query, keys, tile);
    store<T>(load(d_scores + at, count) * slope, d_scores + at, count);
  });
}

}  // inline namespace
}  // namespace score

struct NoDerivative {};

// Holds a function of a pair of a query and a key, and the function's derivative. A ScoreFunction converts to a ScoreRule that points to it, so it must outlive
// the rule.
template <class Function, class Derivative = NoDerivative>
class ScoreFunction {
 public:
  explicit ScoreFunction(Function function, Derivative derivative = {}) : function_(std::move(function)), derivative_(std::move(derivative)) {}

  operator ScoreRule() const& {  // NOLINT(google-explicit-constructor): options accept a ScoreFunction where they expect a ScoreRule
    ScoreRule rule;
    rule.data = this;
    rule.forward = [](const ScoreTile& tile, const void* self) {
      const Function& f = static_cast<const ScoreFunction*>(self)->function_;
      tile.float64 ? score::change<double>(f, tile) : score::change<float>(f, tile);
    };
    if constexpr (!std::is_same_v<Derivative, NoDerivative>) {
      rule.backward = [](const ScoreTile& tile, const void* before, double* /*sums*/, const void* self) {
        const Derivative& d = static_cast<const ScoreFunction*>(self)->derivative_;
        tile.float64 ? score::differentiate<double>(d, tile, before) : score::differentiate<float>(d, tile, before);
      };
    }
    return rule;
  }
  operator ScoreRule() const&& = delete;  // deleted, because the rule would point to a temporary object

 private:
  Function function_;
  Derivative derivative_;
};

// Makes a ScoreFunction. function(score, q, k) returns the new scores of pairs; derivative(score, q, k) returns the derivative of each new score by the old
// score. Without a derivative there is no backward pass.
template <class Function, class Derivative = NoDerivative>
ScoreFunction<Function, Derivative> score_rule(Function function, Derivative derivative = {}) {
  return ScoreFunction<Function, Derivative>(std::move(function), std::move(derivative));
}

}  // namespace polyhead
#pragma GCC visibility pop
