// The normal form of attention: what every backend sees, whatever the caller wrote. Built and checked once by src/sdpa; plain data here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "polyhead/executor.h"
#include "polyhead/maps.h"
#include "polyhead/mask.h"
#include "polyhead/tensor_view.h"

namespace polyhead {

// Half-open range of keys; empty when last <= first.
struct KeyRange {
  std::int64_t first, last;
};

// Causal corner, window and key lengths as one range per query row: [t + lower, t + upper), cut to [0, keys) and to the row's length.
struct KeyRanges {
  std::int64_t lower = 0, upper = 0;   // within [-T, S], so that t + upper cannot overflow
  std::int64_t queries = 0, keys = 0;
  std::vector<std::int64_t> lengths;   // none, one per b, or one per (b, t)
  bool length_per_query = false;
  bool banded = false;                 // false: lower and upper keep every key

  KeyRange at(std::int64_t b, std::int64_t t) const {
    KeyRange range{0, keys};
    if (banded) range = {std::max<std::int64_t>(0, t + lower), std::min(keys, t + upper)};
    if (!lengths.empty()) range.last = std::min(range.last, lengths[static_cast<std::size_t>(length_per_query ? b * queries + t : b)]);
    return range;
  }
};

// A boolean tensor seen as [*,N,T,S] through zero strides; an element keeps its pair when it equals `attend`.
struct DenseMask {
  ConstTensorView tensor;
  bool attend;
};

struct DropoutRule {
  double p = 0;
  std::uint64_t seed = 0;
  ConstTensorView keep;  // [*,N,T,S], or absent: the generator decides
  bool active() const { return p > 0 || keep; }
};

struct Problem {
  DType dtype = DType::f32;
  Shape lead;                        // the leading dimensions; b counts them in row-major order
  std::int64_t batch = 0;            // their product
  std::int64_t heads = 0, kv_heads = 0;
  std::int64_t queries = 0, keys = 0;
  std::int64_t qk_width = 0, v_width = 0;
  double scale = 1, softcap = 0;
  KeyRanges ranges;
  std::vector<DenseMask> masks;      // at most two: one over pairs, one over keys
  ConstTensorView bias;              // [*,N,T,S], or absent
  DropoutRule dropout;
  EmptyRows empty_rows = EmptyRows::zero;
  Executor* executor = nullptr;

  std::int64_t kv_head(std::int64_t n) const { return n / (heads / kv_heads); }
};

// Every view has the rank of `lead` plus three: [*,N,T,H], [*,K,S,H], ...; lse is [*,N,T,1].
struct ForwardProblem : Problem {
  ConstTensorView q, k, v;
  TensorView out, lse, attention_weights;  // attention_weights [*,N,T,S]; lse and attention_weights absent: not wanted
};

struct BackwardProblem : Problem {
  ConstTensorView q, k, v, out, lse, d_out;
  TensorView d_q, d_k, d_v;  // absent: not wanted
  TensorView d_bias;         // [*,N,T,S] through the strides of the caller's tensor: positions that share memory are summed
  TensorView d_bias_given;   // as the caller gave it, to be zeroed first
};

struct MapsProblem : Problem {
  ConstTensorView q, k, lse;  // lse absent: scores only
  MapValue value = MapValue::probability;
};

// Takes the map of the i-th of the queries that were asked for, [S]; they come in order.
using RowConsumer = std::function<void(std::int64_t i, std::span<const double> values)>;

// One (b, n) slice of a view of the normal form: [rows, columns].
template <class T>
struct HeadSlice {
  T* data;
  std::int64_t row_stride, column_stride;
  T& operator()(std::int64_t row, std::int64_t column) const { return data[row * row_stride + column * column_stride]; }
};

template <class T, class Void>
HeadSlice<T> head_slice(const BasicTensorView<Void>& view, std::int64_t b, std::int64_t n) {
  const int lead = view.rank() - 3;
  std::int64_t offset = n * view.strides()[lead];
  for (int axis = lead - 1; axis >= 0; --axis) {
    offset += b % view.shape()[axis] * view.strides()[axis];
    b /= view.shape()[axis];
  }
  // Booleans are read as bytes: any non-zero byte is true.
  return {static_cast<T*>(view.data()) + offset, view.strides()[lead + 1], view.strides()[lead + 2]};
}

// kept[s] = 1 where query t of head (b, n) may attend to key s, else 0; returns whether any key is kept.
inline bool kept_keys(const Problem& problem, std::int64_t b, std::int64_t n, std::int64_t t, std::vector<std::uint8_t>& kept) {
  kept.assign(static_cast<std::size_t>(problem.keys), 0);
  const KeyRange range = problem.ranges.at(b, t);
  if (range.last <= range.first) return false;
  std::fill(kept.begin() + range.first, kept.begin() + range.last, std::uint8_t{1});
  for (const DenseMask& mask : problem.masks) {
    const auto slice = head_slice<const std::uint8_t>(mask.tensor, b, n);
    for (std::int64_t s = range.first; s < range.last; ++s) kept[static_cast<std::size_t>(s)] &= (slice(t, s) != 0) == mask.attend;
  }
  return std::find(kept.begin(), kept.end(), std::uint8_t{1}) != kept.end();
}

}  // namespace polyhead
