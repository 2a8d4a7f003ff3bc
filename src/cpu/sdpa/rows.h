// The keys that a row attends to, and the steps from a product <q, k> to a score. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/elementary.h"
#include "cpu/sdpa/task.h"
#include "cpu/storage.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
inline constexpr T kInfinity = static_cast<T>(__builtin_inff());

POLYHEAD_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
POLYHEAD_INLINE std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
POLYHEAD_INLINE std::int64_t round_up(std::int64_t x, std::int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// scratch_bytes() returns the size of a kernel's scratch, and run_kernel() runs the kernel. Both choose the compute type by the task's dtype.
template <template <class> class Scratch, class Task>
std::int64_t scratch_bytes(const Task& task) {
  const auto bytes_of = [&](auto scratch) { return decltype(scratch)::layout(task, nullptr, scratch); };
  return task.dtype == DType::f64 ? bytes_of(Scratch<double>{}) : bytes_of(Scratch<float>{});
}
template <template <class> class Kernel, class Task>
void run_kernel(const Task& task, void* memory) {
  task.dtype == DType::f64 ? Kernel<double>(task, memory).run() : Kernel<float>(task, memory).run();
}

template <class T>
POLYHEAD_INLINE void clear(T* to, std::int64_t first, std::int64_t last) {
  for (std::int64_t i = first; i < last; ++i) to[i] = 0;
}

struct Row {
  std::int64_t number, head, query;
};

// Returns the row after `row`: the next query of the head, or the first query of the next head.
POLYHEAD_INLINE Row next_row(const Row& row, std::int64_t queries) {
  return row.query + 1 < queries ? Row{row.number + 1, row.head, row.query + 1} : Row{row.number + 1, row.head + 1, 0};
}

POLYHEAD_INLINE RowKind kind_of(const KeySet& set, const Row& row) {
  return set.row_kinds == nullptr ? RowKind::masked : set.row_kinds[row.number];
}

// Returns the key range that causal mask, window, key starts and key lengths allow to the row; boolean masks are not applied. For an empty row that attends to all keys by
// empty_rows, returns all keys.
POLYHEAD_INLINE KeyRange range_of(const KeySet& set, const Row& row) {
  return kind_of(set, row) == RowKind::masked ? key_range(set, row.query) : KeyRange{0, set.keys};
}

// Returns range_of() without the mask blocks at its beginning and its end in which a boolean mask allows no pair.
POLYHEAD_INLINE KeyRange narrow_range_of(const KeySet& set, const Row& row) {
  const KeyRange range = range_of(set, row);
  return kind_of(set, row) == RowKind::masked ? without_skipped_ends(set, row.head, row.query, range) : range;
}

template <class T, class P>
POLYHEAD_INLINE const T* row_of(const P& view, const T* data, const Row& row) {
  return data + row.head * view.head + row.query * view.row;
}

// Returns whether the boolean masks allow the row to attend to the key.
POLYHEAD_INLINE bool attends_to(const KeySet& set, const Row& row, std::int64_t key) {
  return kind_of(set, row) != RowKind::masked || masks_attend(set, row.head, row.query, key);
}

// For a row whose `sum` is not finite: sets x to `sum` at each attended key, and to 0 at masked keys.
template <class T>
POLYHEAD_INLINE void spread_non_finite(const HeadGroup& group, const Row& row, KeyRange own, T sum, T* x) {
  for (std::int64_t s = own.first; s < own.last; ++s) x[s] = attends_to(group, row, s) ? sum : T{0};
}

// Returns an array in which element i, for i in [low, high), is the row's mask byte for key first + i. The bytes are read in place if they are contiguous, else
// copied to `to`.
template <class P>
POLYHEAD_INLINE const std::uint8_t* row_bytes(const P& view, const Row& row, std::int64_t first, std::int64_t low, std::int64_t high, std::uint8_t* to) {
  const std::uint8_t* bytes = row_of(view, static_cast<const std::uint8_t*>(view.data), row) + first * view.column;
  if (view.column == 1) return bytes;
  for (std::int64_t i = low; i < high; ++i) to[i] = bytes[i * view.column];
  return to;
}

// Returns the mask bytes of the row as row_bytes() does. If the mask has listed blocks, the bytes are always copied, one block at a time.
POLYHEAD_INLINE const std::uint8_t* mask_bytes(const BooleanMask& mask, const Row& row, std::int64_t first, std::int64_t low, std::int64_t high, std::uint8_t* to) {
  if (!mask.listed()) return row_bytes(mask, row, first, low, high, to);
  const std::uint8_t* const blocks = mask.data + row.head * mask.head + mask.row_of_query(row.query) * mask.row;
  for (std::int64_t i = low; i < high;) {
    const std::int64_t block = mask.column_of_key(first + i), end = smaller(high, (block + 1) * mask.listed_keys - mask.key_position - first);
    for (const std::uint8_t byte = blocks[block * mask.column]; i < end; ++i) to[i] = byte;
  }
  return to;
}

// Loads `count` elements into the lanes of a vector; the other lanes are 0.
template <class T, class Storage>
POLYHEAD_INLINE Vector<T> gather(const Storage* from, std::int64_t stride, std::int64_t count) {
  T lanes[kLanes<T>] = {};
  for (std::int64_t i = 0; i < count; ++i) lanes[i] = widen(from[i * stride]);
  return load_vector(lanes);
}

// Sets x[i] to factor x[i] + the row's bias. Product and sum are rounded once.
template <class T, class Storage>
POLYHEAD_INLINE void add_row(const Storage* from, std::int64_t stride, std::int64_t low, std::int64_t high, T factor, T* x) {
  constexpr int kWidth = kLanes<T>;
  std::int64_t i = low;
  for (; i + kWidth <= high; i += kWidth) {
    Vector<T> bias;
    if (std::is_same_v<T, Storage> && stride == 1) {
      bias = load_vector(reinterpret_cast<const T*>(from) + i);
    } else {
      bias = stride == 1 ? gather<T>(from + i, 1, kWidth) : gather<T>(from + i * stride, stride, kWidth);
    }
    store_vector<T>(multiply_add<T>(load_vector(x + i), broadcast(factor), bias), x + i);
  }
  if (i == high) return;
  const Vector<T> sum = multiply_add<T>(gather<T>(x + i, 1, high - i), broadcast(factor), gather<T>(from + i * stride, stride, high - i));
  for (std::int64_t lane = 0; i < high; ++i, ++lane) x[i] = sum[lane];
}

// The scale, as a product power x factor. First q or k is multiplied by `power`, a power of two, so nothing is rounded. The products <q, k> are multiplied by
// `factor` later, in most cases as a part of the exponential.
template <class T>
struct ScoreScale {
  explicit ScoreScale(const HeadGroup& group)
      : power(static_cast<T>(group.scale_power)), of_products(static_cast<T>(group.scale_factor)), factor(group.rule != nullptr ? T{1} : of_products), scaled(factor), natural(1) {}
  // Returns the factor of the exponential for scores that must still be multiplied by `pending_scale`, which is `factor` or 1.
  const ExpFactor<T>& exp(T pending_scale) const { return pending_scale == factor ? scaled : natural; }

  T power, of_products;  // of_products: the factor by which the products <q, k> are multiplied
  T factor;              // the factor that scores still lack when exp is computed; 1 with a score rule, because a rule reads scaled scores
  // scaled: for exp of scores that must still be multiplied by `factor`; natural: for exp of complete scores
  ExpFactor<T> scaled, natural;
};

// Returns what finish_scores() returns. This number is the same for every row.
template <class T>
POLYHEAD_INLINE T factor_of_scores(const HeadGroup& group, const ScoreScale<T>& scale) {
  return group.softcap > 0 || group.bias.data != nullptr ? T{1} : scale.factor;
}

// Replaces a row's products x by scores softcap(factor x) + bias, for the keys first + i with i in [low, high). Masked keys get the score -infinity, and so do
// the other elements of the vectors that contain this range. (Adding -infinity would not do, because a masked score may be NaN.) Returns a number by which the
// caller must still multiply x: `factor`, or 1 if there is a softcap or a bias. `derivative`, if given, receives the softcap's derivative 1 - tanh^2. `bytes`
// is scratch with one byte for each key of the block.
template <class T>
T finish_scores(const HeadGroup& group, const Row& row, T factor, std::int64_t first, std::int64_t low, std::int64_t high, T* x,
                T* derivative, std::uint8_t* bytes) {
  constexpr int kWidth = kLanes<T>;
  const std::int64_t low_vector = low / kWidth * kWidth, high_vector = round_up(high, kWidth);
  const RowKind kind = kind_of(group, row);
  if (group.softcap > 0) {
    const T cap = static_cast<T>(group.softcap), inverse = static_cast<T>(static_cast<double>(factor) / group.softcap);
    for (std::int64_t i = low_vector; i < high_vector; i += kWidth) {
      const Vector<T> tanh_x = tanh<T>(load_vector(x + i) * inverse);
      store_vector<T>(tanh_x * cap, x + i);
      if (derivative != nullptr) store_vector<T>(multiply_add<T>(-tanh_x, tanh_x, broadcast(T{1})), derivative + i);
    }
    factor = 1;
  }
  if (kind == RowKind::uniform) {
    for (std::int64_t i = low; i < high; ++i) x[i] = 0;
  } else if (group.bias.data != nullptr) {
    with_storage<T>(group.bias_dtype, group.bias.data, [&](auto* data) {
      add_row(row_of(group.bias, data, row) + first * group.bias.column, group.bias.column, low, high, factor, x);
    });
  }
  // Uniform rows have no bias, but the factor is 1 for them too, because score_exp_of() has one result for all rows of a task.
  if (group.bias.data != nullptr) factor = 1;
  for (int i = 0; i < group.mask_count && kind == RowKind::masked; ++i) {
    const BooleanMask& mask = group.masks[i];
    const std::uint8_t* bytes_of_row = mask_bytes(mask, row, first, low, high, bytes);
    std::int64_t s = low;
    for (; s + kWidth <= high; s += kWidth) store_vector<T>(where_bytes<T>(bytes_of_row + s, mask.attend, load_vector(x + s), -kInfinity<T>), x + s);
    for (; s < high; ++s) x[s] = (bytes_of_row[s] != 0) == mask.attend ? x[s] : -kInfinity<T>;
  }
  for (std::int64_t i = low_vector; i < low; ++i) x[i] = -kInfinity<T>;
  for (std::int64_t i = high; i < high_vector; ++i) x[i] = -kInfinity<T>;
  return factor;
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
