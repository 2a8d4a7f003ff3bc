// Provides q, k and v to the forward kernel in the order in which its tiles read them: in place if the strides allow it, else as copies. Only kernel sources
// (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/forward_scratch.h"
#include "cpu/sdpa/pack.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Calls multiply(product, only_finite), which multiplies by v, read from the caller's tensor. If a result is not finite, calls it again with only_finite =
// true, which ignores the non-finite values of v and stores c, and sets `finite` to false. Returns true if the quotient c / divisor was stored, false if c was
// stored.
template <class T, class Operand, class F>
bool multiply_unless_non_finite(const ForwardTask& task, const Scratch<T>& s, const Product<T, Operand>& product, int rows, bool& finite, const F& multiply) {
  const auto copy_vectors = [&](const T* from, T* to) {
    for (std::int64_t d = 0; d < task.v_width; d += kLanes<T>) store_vector<T>(load_vector(from + d), to + d);
  };
  const bool replaces = product.earlier != nullptr && product.quotient == nullptr;
  for (int i = 0; i < rows && replaces; ++i) copy_vectors(product.c + i * product.c_stride, s.joined + i * task.v_width);
  multiply(product, false);
  for (int i = 0; i < rows; ++i) {
    finite &= all_finite(product.quotient != nullptr ? product.quotient + i * product.quotient_stride : product.c + i * product.c_stride,
                         task.v_width);
  }
  if (finite) return product.quotient != nullptr;
  for (int i = 0; i < rows && replaces; ++i) copy_vectors(s.joined + i * task.v_width, product.c + i * product.c_stride);
  Product<T, Operand> sums = product;
  sums.quotient = nullptr;
  multiply(sums, true);
  return false;
}

// A set of columns of a key block, as one bit for each of at most 64 columns; here all columns. A column is a group of kMaskBlockKeys consecutive keys.
inline constexpr std::uint64_t kAllColumns = ~std::uint64_t{0};

POLYHEAD_INLINE bool has_column(std::uint64_t columns, std::int64_t key) { return (columns >> (key / kMaskBlockKeys) & 1) != 0; }

// Returns `keys` without the columns at its beginning and end that are not in `wanted`.
POLYHEAD_INLINE KeyRange without_unwanted_ends(std::uint64_t wanted, KeyRange keys) {
  while (!keys.empty() && !has_column(wanted, keys.first)) keys.first = (keys.first / kMaskBlockKeys + 1) * kMaskBlockKeys;
  while (!keys.empty() && !has_column(wanted, keys.last - 1)) keys.last = (keys.last - 1) / kMaskBlockKeys * kMaskBlockKeys;
  return keys;
}

// Calls f(first, count) for each run of keys whose columns are in `wanted`.
template <class F>
POLYHEAD_INLINE void for_each_wanted(std::uint64_t wanted, KeyRange keys, const F& f) {
  while (!keys.empty()) {
    std::int64_t end = keys.first;
    while (end < keys.last && has_column(wanted, end)) end = smaller((end / kMaskBlockKeys + 1) * kMaskBlockKeys, keys.last);
    if (end > keys.first) f(keys.first, static_cast<int>(end - keys.first));
    keys.first = end;
    while (!keys.empty() && !has_column(wanted, keys.first)) keys.first = (keys.first / kMaskBlockKeys + 1) * kMaskBlockKeys;
  }
}

template <class T>
class ForwardOperands {
 public:
  ForwardOperands(const ForwardTask& task, T k_factor, const Scratch<T>& scratch) : task_(task), k_factor_(k_factor), s_(&scratch) {}

  const T* q(std::int64_t row) const { return q_ + row * q_stride_; }
  std::int64_t q_stride() const { return q_stride_; }
  const T* v() const { return v_; }
  bool finite() const { return finite_; }  // false: v of the key block had NaN or infinities, which were replaced by 0

  // Uses q in place if its rows are evenly spaced, contiguous and in the compute type; else copies it.
  void load_queries() {
    const HeadView& q = task_.q;
    const bool one_head = task_.first_row % task_.queries + task_.rows <= task_.queries;
    if (task_.dtype == kOwnStorage<T> && q.column == 1 && (one_head || q.head == task_.queries * q.row)) {
      q_ = row_of(q, static_cast<const T*>(q.data), s_->rows[0]);
      q_stride_ = q.row;
      return;
    }
    q_ = s_->q;
    q_stride_ = task_.qk_width;
    for (std::int64_t i = 0; i < task_.rows; ++i) {
      with_storage<T>(task_.dtype, q.data, [&](auto* data) {
        widen_row<T>(row_of(q, data, s_->rows[i]), q.column, task_.qk_width, T{1}, s_->q + i * task_.qk_width);
      });
    }
  }

  // Returns the panel that begins at key `panel` of the key block. For a task of few rows, this call packs the panel, which then stays in the first-level cache
  // until the next panel is packed.
  const T* k_panel(std::int64_t panel) {
    if (!few_rows<T>(task_)) return k_ + panel * task_.qk_width;
    pack_keys(panel, static_cast<int>(smaller(kPanel, block_.last - panel)), s_->k);
    return s_->k;
  }

  // For a task of few rows, computes c = q k^T of `rows` rows with a whole panel of the key block, reading the keys from the caller's tensor. Returns false,
  // and computes nothing, if the panel must be packed first. With rows == 0 nothing is computed, and the result says whether the panel can be read.
  bool multiply_stored_keys(const T* q, int rows, std::int64_t panel, T* c, std::int64_t c_stride) const {
    if (!few_rows<T>(task_) || task_.k.column != 1 || panel + kPanel > block_.last) return false;
    return with_key_storage<T>(task_.key_dtype, task_.k.data, [&](auto* data) {
      using Storage = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
      if (task_.qk_width % (kWidth * static_cast<std::int64_t>(sizeof(T) / sizeof(Storage))) != 0) return false;
      if (rows == 0) return true;
      for_each_tile(rows, [&](int row, auto count) {
        multiply_keys<count()>(stored_keys(data, first_ + panel), q + row * q_stride_, c + row * c_stride, c_stride);
      });
      return true;
    });
  }

  // Multiplies the exponentials by v for `keys`, reading v from the caller's tensor. Returns true if c / divisor was stored, false if c was stored, as
  // multiply_unless_non_finite() does.
  bool multiply_stored_values(const Product<T>& product, KeyRange keys, int rows) {
    return multiply_unless_non_finite(task_, *s_, product, rows, finite_,
                                      [&](const Product<T>& sums, bool only_finite) { multiply_stored_values(sums, keys.first, rows, only_finite); });
  }

  // Loads v of the keys first + `block`, and k of those keys whose columns are in `wanted`. If `again`, an earlier pass has packed these keys, and the packed
  // keys are still in memory.
  void load_keys(std::int64_t first, KeyRange block, std::uint64_t wanted, bool again) {
    first_ = first, block_ = block, finite_ = true;
    const std::int64_t from = block.first / kPanel * kPanel, place = s_->keeps_keys ? first : 0;
    const int count = static_cast<int>(block.last - from);
    k_ = s_->k + place * task_.qk_width;
    if (!again && !few_rows<T>(task_))
      for_each_wanted(wanted, {from, block.last}, [&](std::int64_t key, int keys) { pack_keys(key, keys, s_->k + (place + key) * task_.qk_width); });
    if (reads_stored_values<T>(task_)) return;
    T* const v = s_->v + place * s_->v_padded;
    const bool in_place =
        task_.key_dtype == kOwnStorage<T> && task_.v.column == 1 && task_.v.row == s_->v_padded && task_.v_width == s_->v_padded;
    std::uint8_t& all_of_block = s_->finite[place / s_->keys];
    if (!again) {
      const bool ready = in_place && all_finite(values_at(first + from), count * task_.v.row);
      all_of_block = ready || copy_values(first + from, count, v + from * s_->v_padded) ? 1 : 0;
    }
    finite_ = all_of_block != 0;
    v_ = in_place && finite_ ? values_at(first) : v;
  }

  // Prefetches the queries of the next strip while the products of the current strip are computed.
  void fetch_queries(std::int64_t strip, int rows) const {
    const T* q = q_ + strip * q_stride_;
    for (int i = 0; i < rows; ++i, q += q_stride_) {
      for (std::int64_t d = 0; d < task_.qk_width; d += 64 / static_cast<std::int64_t>(sizeof(T))) __builtin_prefetch(q + d);
    }
  }

 private:
  static constexpr int kWidth = kLanes<T>, kPanel = kPanelKeys<T>;

  template <class Storage>
  StoredRows<T, Storage> stored_keys(const Storage* k, std::int64_t first) const {
    return {k + first * task_.k.row, task_.k, task_.qk_width, task_.keys - first, k_factor_, RowScales<T>(task_.k_scale, first)};
  }

  // Packs `count` keys of the key block, from key `key` of the block on.
  __attribute__((noinline)) void pack_keys(std::int64_t key, int count, T* to) const {
    const std::int64_t first = first_ + key;
    with_key_storage<T>(task_.key_dtype, task_.k.data, [&](auto* data) {
      pack_transposed(stored_keys(data, first), count, s_->lines, to);
    });
  }

  // Transposes keys in registers and multiplies them immediately. A packed copy of the panel would fill the first-level cache and be read only once.
  template <int Rows, class Storage>
  __attribute__((noinline)) void multiply_keys(const StoredRows<T, Storage>& keys, const T* q, T* c, std::int64_t c_stride) const {
    for (int key = 0; key < kPanel; key += kWidth) {
      Vector<T> sums[Rows] = {};
      transpose_rows(keys, key, [&](std::int64_t d, Vector<T> x) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int i = 0; i < Rows; ++i) sums[i] = multiply_add<T>(broadcast(q[i * q_stride_ + d]), x, sums[i]);
      });
      for (int i = 0; i < Rows; ++i) store_vector<T>(sums[i], c + i * c_stride + key);
    }
  }

  void multiply_stored_values(const Product<T>& product, std::int64_t key, int rows, bool only_finite) const {
    const RowScales<T> scales(task_.v_scale, first_ + key);
    with_key_storage<T>(task_.key_dtype, task_.v.data, [&](auto* data) {
      using Storage = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
      multiply_stored<T, Storage>({.depth = product.depth,
                                   .a = product.a,
                                   .a_stride = product.a_stride,
                                   .b = data + (first_ + key) * task_.v.row,
                                   .b_stride = task_.v.row,
                                   .c = product.c,
                                   .c_stride = product.c_stride,
                                   .earlier = product.earlier,
                                   .own = product.own,
                                   .quotient = product.quotient,
                                   .quotient_stride = product.quotient_stride,
                                   .divisor = product.divisor,
                                   .reciprocal = product.reciprocal,
                                   .first_run = product.first_run,
                                   .b_scale = scales.data,
                                   .b_scale_stride = scales.stride},
                                  rows, task_.v_width, only_finite);
    });
  }

  const T* values_at(std::int64_t key) const { return static_cast<const T*>(task_.v.data) + key * task_.v.row; }

  // Copies rows of v, with NaN and infinities replaced by 0. Returns true if all elements were finite.
  bool copy_values(std::int64_t first, int count, T* to) const {
    const HeadView& v = task_.v;
    const bool finite = with_key_storage<T>(task_.key_dtype, v.data, [&](auto* data) {
      return copy_rows<T>(data + first * v.row, v.row, v.column, count, task_.v_width, s_->v_padded, T{1}, to,
                          RowScales<T>(task_.v_scale, first));
    });
    if (!finite) zero_non_finite(to, count * s_->v_padded, to);
    return finite;
  }

  const ForwardTask& task_;
  const T k_factor_;
  const Scratch<T>* s_;
  std::int64_t first_ = 0;
  KeyRange block_{0, 0};
  const T *q_ = nullptr, *k_ = nullptr, *v_ = nullptr;
  std::int64_t q_stride_ = 0;
  bool finite_ = true;
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
