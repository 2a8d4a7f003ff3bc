#include "nn/elementwise.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "core/dispatch.h"
#include "core/index.h"
#include "core/parallel.h"
#include "core/shared_sums.h"
#include "nn/rows.h"
#include "problem/problem.h"

namespace polyhead::nn::inline internal {
namespace {

// Calls f(element of tensor 0, element of tensor 1, …) for each position of the rows [first, last) of several tensors [*,width]. The compiler vectorises the
// loop over contiguous rows.
template <class F, class... T>
void for_elements_of(std::int64_t first, std::int64_t last, std::int64_t width, const F& f, const Rows<T>&... tensors) {
  const bool contiguous = (tensors.contiguous() && ...);
  for (std::int64_t row = first; row < last; ++row) {
    if (contiguous && width > 0) {
      const auto loop = [&](T*... elements) {
        for (std::int64_t e = 0; e < width; ++e) f(elements[e]...);
      };
      loop(&tensors.at(row, 0)...);
    } else {
      for (std::int64_t e = 0; e < width; ++e) f(tensors.at(row, e)...);
    }
  }
}

template <class F, class... T>
void for_each_element(const Shape& shape, double nanoseconds, Executor* executor, const F& f, const Rows<T>&... tensors) {
  const std::int64_t width = shape[-1];
  parallel_for(numel(shape.first(shape.size() - 1)), row_grain(width, nanoseconds), executor,
               [&](std::int64_t first, std::int64_t last) { for_elements_of(first, last, width, f, tensors...); });
}

// Returns slice b of a view [*,L,E]: a view [L,E].
template <class T, class Void>
HeadSlice<T> slice(const BasicTensorView<Void>& view, std::int64_t b) {
  const int lead = view.rank() - 2;
  const std::int64_t offset = offset_at(view.shape().first(lead), view.strides().first(lead), b);
  return {static_cast<T*>(view.data()) + offset, view.strides()[lead], view.strides()[lead + 1]};
}

// Returns the positions of sequence b for which `keep` is true; all positions if `keep` is absent.
std::vector<std::int64_t> kept_positions(ConstTensorView keep, std::int64_t b, std::int64_t length) {
  std::vector<std::int64_t> kept;
  for (std::int64_t i = 0; i < length; ++i) {
    if (!keep || slice<const std::uint8_t>(keep.unsqueeze(-1), b)(i, 0) != 0) kept.push_back(i);
  }
  return kept;
}

}  // namespace

void multiply(ConstTensorView a, ConstTensorView b, TensorView out, Executor* executor) {
  dispatch_floating(out.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Rows<const T> x(a.expand(out.shape())), y(b.expand(out.shape()));
    const Rows<T> target(out);
    for_each_element(
        out.shape(), 1, executor, [](const T& a_e, const T& b_e, T& to) { to = store<T>(load(a_e) * load(b_e)); }, x, y, target);
  });
}

void scale_rows(TensorView x, ConstTensorView factors, Executor* executor) {
  const bool is_mask = factors.dtype() == DType::boolean;
  const Tensor scales = Tensor::copy_of(factors, is_mask ? DType::boolean : DType::f64);
  dispatch_floating(x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const Rows<T> rows(x);
    parallel_for(x.numel() == 0 ? 0 : rows.count(), row_grain(x.extent(-1), 1), executor, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) {
        const A scale = is_mask ? A{scales.data<bool>()[r] ? 1.0f : 0.0f} : static_cast<A>(scales.data<double>()[r]);
        const auto row = rows[r];
        for (std::int64_t e = 0; e < x.extent(-1); ++e) row[e] = scale == 0 ? store<T>(A{0}) : store<T>(load(row[e]) * scale);
      }
    });
  });
}

void gate_backward(ConstTensorView y_view, ConstTensorView attended, TensorView d_view, TensorView d_x, Executor* executor) {
  dispatch_floating(d_x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Rows<const T> y(y_view), times(attended.expand(y_view.shape()));
    const Rows<T> d(d_view), target(d_x);
    // The gradient is computed in float64. float32 would round three times, and the error would show in sums over many rows.
    const auto differentiate = [](const T& value, const T& times_e, T& d_e, T& to) {
      const double y_e = load(value), d_y = load(d_e);
      to = store<T>(d_y * double{load(times_e)} * y_e * (1 - y_e));
      d_e = store<T>(load(d_e) * load(value));
    };
    for_each_element(y_view.shape(), 2, executor, differentiate, y, times, d, target);
  });
}

void add(ConstTensorView x, TensorView sums, Executor* executor) {
  const Sum one{x, sums};
  add(std::span(&one, 1), executor);
}

void add(std::span<const Sum> sums, Executor* executor) {
  struct Piece {
    std::size_t sum;
    std::int64_t first, last;  // rows
  };
  std::vector<std::function<void(std::int64_t, std::int64_t)>> add_rows;  // for each sum, a function that adds the rows [first, last)
  std::vector<Piece> pieces;
  for (const Sum& one : sums) {
    const TensorView& sum = one.sum;
    const std::int64_t width = sum.extent(-1);
    dispatch_floating(sum.dtype(), [&](auto type) {
      using T = typename decltype(type)::type;
      add_rows.emplace_back([from = Rows<const T>(one.x), to = Rows<T>(sum), width](std::int64_t first, std::int64_t last) {
        for_elements_of(first, last, width, [](const T& x, T& total) { total = store<T>(load(total) + load(x)); }, from, to);
      });
    });
    const std::int64_t rows = numel(sum.shape().first(sum.rank() - 1)), grain = row_grain(width, 1);
    for (std::int64_t first = 0; first < rows; first += grain) pieces.push_back({add_rows.size() - 1, first, std::min(first + grain, rows)});
  }
  parallel_for(static_cast<std::int64_t>(pieces.size()), 1, executor, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const Piece& piece = pieces[static_cast<std::size_t>(i)];
      add_rows[piece.sum](piece.first, piece.last);
    }
  });
}

void sum_to(ConstTensorView x, TensorView target) {
  const SharedSums sums(target);
  const Shape shape = broadcast_shapes(x.shape(), target.shape());
  const ConstTensorView terms = x.expand(shape);
  const TensorView totals = sums.view().expand(shape);
  const int outer = shape.size() - 1;
  dispatch_floating(x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T* term = terms.data<T>();
    double* total = totals.data<double>();
    const std::int64_t term_step = terms.stride(-1), total_step = totals.stride(-1), width = shape[-1];
    for_each_offset<2>(shape.first(outer), {terms.strides().first(outer), totals.strides().first(outer)}, [&](const auto& at) {
      const T* from = term + at[0];
      double* to = total + at[1];
      if (term_step == 1 && total_step == 1) {
        for (std::int64_t e = 0; e < width; ++e) to[e] += load(from[e]);
      } else {
        for (std::int64_t e = 0; e < width; ++e) to[e * total_step] += load(from[e * term_step]);
      }
    });
  });
  sums.store();
}

Tensor without_unreached_rows(ConstTensorView x_view, ConstTensorView d_y_view, Executor* executor, const Workspace* workspace) {
  const std::int64_t in_width = x_view.extent(-1), out_width = d_y_view.extent(-1);
  Tensor result;
  dispatch_floating(x_view.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Rows<const T> x(x_view), d_y(d_y_view);
    const auto is_unreached = [&](std::int64_t row) {
      const auto gradient = d_y[row];
      for (std::int64_t o = 0; o < out_width; ++o) {
        if (load(gradient[o]) != 0) return false;
      }
      const auto input = x[row];
      for (std::int64_t i = 0; i < in_width; ++i) {
        if (!std::isfinite(load(input[i]))) return true;
      }
      return false;
    };
    const auto for_rows = [&](const auto& f) {
      parallel_for(x.count(), row_grain(in_width + out_width, 1), executor, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t row = first; row < last; ++row) f(row);
      });
    };
    std::vector<std::uint8_t> unreached(static_cast<std::size_t>(x.count()));
    for_rows([&](std::int64_t row) { unreached[static_cast<std::size_t>(row)] = is_unreached(row); });
    if (std::find(unreached.begin(), unreached.end(), 1) == unreached.end()) return;
    result = uninitialised(x_view.dtype(), x_view.shape(), workspace);
    for_rows([&](std::int64_t row) {
      T* to = result.data<T>() + row * in_width;
      for (std::int64_t i = 0; i < in_width; ++i) to[i] = unreached[static_cast<std::size_t>(row)] ? T{} : x.at(row, i);
    });
  });
  return result;
}

void reduce_positions(ConstTensorView x, ConstTensorView keep, Reduce reduce, TensorView reduced, Executor* executor) {
  const std::int64_t batch = numel(x.shape().first(x.rank() - 2)), length = x.extent(-2), width = x.extent(-1);
  dispatch_floating(x.dtype(), [&](auto from_type) {
    dispatch_floating(reduced.dtype(), [&](auto to_type) {
      using From = typename decltype(from_type)::type;
      using To = typename decltype(to_type)::type;
      parallel_for(batch, row_grain(length * width, 1), executor, [&](std::int64_t first, std::int64_t last) {
        std::vector<double> sums(static_cast<std::size_t>(width));
        for (std::int64_t b = first; b < last; ++b) {
          const std::vector<std::int64_t> kept = kept_positions(keep, b, length);
          const auto from = slice<const From>(x, b);
          const auto to = slice<To>(reduced, b);
          sums.assign(sums.size(), 0.0);
          for (const std::int64_t i : kept) {
            for (std::int64_t j = 0; j < width; ++j) sums[static_cast<std::size_t>(j)] += load(from(i, j));
          }
          const double divisor = reduce == Reduce::mean && !kept.empty() ? static_cast<double>(kept.size()) : 1;
          for (std::int64_t j = 0; j < width; ++j) to(0, j) = store<To>(sums[static_cast<std::size_t>(j)] / divisor);
        }
      });
    });
  });
}

void spread_mean(ConstTensorView d_mean, ConstTensorView keep, TensorView d_x, Executor* executor) {
  const std::int64_t batch = numel(d_x.shape().first(d_x.rank() - 2)), length = d_x.extent(-2), width = d_x.extent(-1);
  fill(d_x, 0);
  dispatch_floating(d_x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    parallel_for(batch, row_grain(length * width, 1), executor, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t b = first; b < last; ++b) {
        const std::vector<std::int64_t> kept = kept_positions(keep, b, length);
        const auto from = slice<const T>(d_mean, b);
        const auto to = slice<T>(d_x, b);
        for (const std::int64_t i : kept) {
          for (std::int64_t j = 0; j < width; ++j) to(i, j) = store<T>(load(from(0, j)) / static_cast<double>(kept.size()));
        }
      }
    });
  });
}

}  // namespace polyhead::nn::inline internal
