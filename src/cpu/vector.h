// The vectors of one instruction set, for kernel sources only: GCC's and Clang's own (`vector_size`), whose operators act lane by lane. A
// kernel source is compiled once per row of cmake/isa.cmake; everything here is local to that object file.
#pragma once

#include <cstdint>
#include <type_traits>

#define POLYHEAD_INLINE inline __attribute__((always_inline))

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
inline constexpr int kLanes = POLYHEAD_VECTOR_BYTES / static_cast<int>(sizeof(T));
inline constexpr int kRegisters = POLYHEAD_VECTOR_REGISTERS;

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(POLYHEAD_VECTOR_BYTES)));
  typedef T unaligned __attribute__((vector_size(POLYHEAD_VECTOR_BYTES), aligned(alignof(T)), may_alias));
};
template <class T>
using Vector = typename VectorOf<T>::type;

// The integer of a lane's size: comparisons give vectors of it.
template <class T>
using Bits = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;

template <class T>
POLYHEAD_INLINE Vector<T> load_vector(const T* from) {
  return *reinterpret_cast<const typename VectorOf<T>::unaligned*>(from);
}
template <class T>
POLYHEAD_INLINE void store_vector(Vector<T> x, T* to) {
  *reinterpret_cast<typename VectorOf<T>::unaligned*>(to) = x;
}
template <class T>
POLYHEAD_INLINE Vector<T> broadcast(T x) {
  return Vector<T>{} + x;
}
// The second where they compare equal or with NaN, as the instruction does.
template <class V>
POLYHEAD_INLINE V larger(V a, V b) {
  return a > b ? a : b;
}

template <class T>
POLYHEAD_INLINE T largest_lane(Vector<T> x) {
  T largest = x[0];
  for (int i = 1; i < kLanes<T>; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}
// By halves, as a tree: the same order on every call.
template <class T>
POLYHEAD_INLINE T sum_of_lanes(Vector<T> x) {
  T lanes[kLanes<T>];
  store_vector<T>(x, lanes);
  for (int half = kLanes<T> / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
