// Reads and writes a tensor [*,width] row by row.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/axis.h"
#include "core/dispatch.h"
#include "core/parallel.h"

namespace polyhead::nn {

// The rows of a view [*,width] of storage type T.
template <class T>
class Rows {
 public:
  explicit Rows(BasicTensorView<std::conditional_t<std::is_const_v<T>, const void, void>> view)
      : data_(view.template data<std::remove_const_t<T>>()),
        rows_(view.shape().first(view.rank() - 1), view.strides().first(view.rank() - 1)),
        step_(view.stride(-1)) {}

  std::int64_t count() const { return rows_.count(); }
  bool contiguous() const { return step_ == 1; }  // true if the elements of a row are contiguous
  T& at(std::int64_t row, std::int64_t column) const { return data_[rows_[row] + column * step_]; }

  // One row of a tensor. Finding a row takes divisions, so find it once, before the loop over its columns.
  struct Row {
    T* data;
    std::int64_t step;
    T& operator[](std::int64_t column) const { return data[column * step]; }
  };
  Row operator[](std::int64_t row) const { return {data_ + rows_[row], step_}; }

 private:
  T* data_;
  Axis rows_;
  std::int64_t step_;
};

// One row as contiguous numbers of the type in which arithmetic is done. If the row is stored in this form, it is the tensor's memory, else a copy that put()
// writes back.
template <class T>
class ComputedRow {
 public:
  using A = Accumulator<std::remove_const_t<T>>;
  ComputedRow(const Rows<T>& rows, std::int64_t width) : rows_(rows), copy_(in_place(rows) ? 0 : static_cast<std::size_t>(width)) {}
  A* at(std::int64_t row) {
    if constexpr (std::is_same_v<T, A>) {
      if (copy_.empty()) return &rows_.at(row, 0);
    }
    return copy_.data();
  }
  const A* load_row(std::int64_t row) {
    if constexpr (std::is_same_v<std::remove_const_t<T>, A>) {
      if (copy_.empty()) return &rows_.at(row, 0);
    }
    for (std::size_t e = 0; e < copy_.size(); ++e) copy_[e] = load(rows_.at(row, static_cast<std::int64_t>(e)));
    return copy_.data();
  }
  void put(std::int64_t row) {
    for (std::size_t e = 0; e < copy_.size(); ++e) rows_.at(row, static_cast<std::int64_t>(e)) = store<T>(copy_[e]);
  }

 private:
  static bool in_place(const Rows<T>& rows) { return std::is_same_v<std::remove_const_t<T>, A> && rows.contiguous(); }

  const Rows<T>& rows_;
  std::vector<A> copy_;
};

// A stride of 1 that is known at compile time. With it the compiler vectorises loops that are written for any stride.
inline constexpr std::integral_constant<std::int64_t, 1> kOne;

// Returns the sum of term(0) … term(count - 1). It is computed as eight running sums, which fit into a vector register, and whose rounding errors grow only
// with count / 8.
template <class A, class F>
A sum(std::int64_t count, const F& term) {
  A lanes[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (std::int64_t lane = 0; lane < 8; ++lane) lanes[lane] += term(i + lane);
  }
  for (std::int64_t lane = 0; i < count; ++i, ++lane) lanes[lane] += term(i);
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

// Returns the number of rows of a piece for parallel_for, if scalar code takes about `nanoseconds` for an element. AVX-512 code takes an eighth of this time
// (layer norm) or less (sigmoid), so a piece has 5 times kLeastPieceNanoseconds of scalar code.
inline std::int64_t row_grain(std::int64_t width, double nanoseconds) {
  constexpr double kLeast = 5 * kLeastPieceNanoseconds;
  const double row = nanoseconds * static_cast<double>(width > 0 ? width : 1);
  return row < kLeast ? static_cast<std::int64_t>(kLeast / row) : 1;
}

}  // namespace polyhead::nn
