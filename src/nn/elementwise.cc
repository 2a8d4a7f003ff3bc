#include "nn/elementwise.h"

#include <cmath>
#include <vector>

#include "core/dispatch.h"
#include "core/index.h"

namespace polyhead::nn {
namespace {

// f(Type<T>) with one storage type for all tensors of the operation.
template <class F>
void for_storage(ConstTensorView x, const F& f) {
  dispatch_floating(x.dtype(), f);
}

// One [L,E] slice of a view [*,L,E].
template <class T>
struct Slice {
  T* data;
  std::int64_t row, column;
  T& operator()(std::int64_t i, std::int64_t j) const { return data[i * row + j * column]; }
};

template <class T, class Void>
Slice<T> slice(const BasicTensorView<Void>& view, std::int64_t b) {
  const int lead = view.rank() - 2;
  const std::int64_t offset = offset_at(view.shape().first(lead), view.strides().first(lead), b);
  return {static_cast<T*>(view.data()) + offset, view.strides()[lead], view.strides()[lead + 1]};
}

// The positions of sequence b that count.
std::vector<std::int64_t> kept_positions(ConstTensorView keep, std::int64_t b, std::int64_t length) {
  std::vector<std::int64_t> kept;
  for (std::int64_t i = 0; i < length; ++i) {
    if (!keep || slice<const std::uint8_t>(keep.unsqueeze(-1), b)(i, 0) != 0) kept.push_back(i);
  }
  return kept;
}

}  // namespace

void sigmoid_in_place(TensorView x) {
  for_storage(x, [&](auto type) {
    using T = typename decltype(type)::type;
    T* data = x.data<T>();
    for_each_offset<1>(x.shape(), {x.strides()}, [&](const auto& at) {
      const double value = load(data[at[0]]);
      data[at[0]] = store<T>(1 / (1 + std::exp(-value)));  // in float64: one rounding instead of three
    });
  });
}

void multiply(ConstTensorView a, ConstTensorView b, TensorView out) {
  const ConstTensorView x = a.expand(out.shape()), y = b.expand(out.shape());
  for_storage(out, [&](auto type) {
    using T = typename decltype(type)::type;
    const T *px = x.data<T>(), *py = y.data<T>();
    T* target = out.data<T>();
    for_each_offset<3>(out.shape(), {x.strides(), y.strides(), out.strides()},
                       [&](const auto& at) { target[at[2]] = store<T>(load(px[at[0]]) * load(py[at[1]])); });
  });
}

void sigmoid_backward(ConstTensorView y, ConstTensorView factor, ConstTensorView d_y, TensorView d_x) {
  const ConstTensorView times = factor.expand(y.shape());
  for_storage(d_x, [&](auto type) {
    using T = typename decltype(type)::type;
    const T *py = y.data<T>(), *pf = times.data<T>(), *pd = d_y.data<T>();
    T* target = d_x.data<T>();
    for_each_offset<4>(y.shape(), {y.strides(), times.strides(), d_y.strides(), d_x.strides()}, [&](const auto& at) {
      // In float64: three roundings fewer, which a sum over many rows would show.
      const double value = load(py[at[0]]);
      target[at[3]] = store<T>(load(pd[at[2]]) * double{load(pf[at[1]])} * value * (1 - value));
    });
  });
}

void add(ConstTensorView x, TensorView sums) {
  const ConstTensorView terms = x.expand(broadcast_shapes(x.shape(), sums.shape()));
  const TensorView targets = sums.expand(terms.shape());
  for_storage(sums, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* source = terms.data<T>();
    T* target = targets.data<T>();
    for_each_offset<2>(terms.shape(), {terms.strides(), targets.strides()},
                       [&](const auto& at) { target[at[1]] = store<T>(load(target[at[1]]) + load(source[at[0]])); });
  });
}

void reduce_positions(ConstTensorView x, ConstTensorView keep, Reduce reduce, TensorView reduced) {
  const std::int64_t batch = numel(x.shape().first(x.rank() - 2)), length = x.extent(-2), width = x.extent(-1);
  for_storage(x, [&](auto type) {
    using T = typename decltype(type)::type;
    std::vector<double> sums(static_cast<std::size_t>(width));
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::vector<std::int64_t> kept = kept_positions(keep, b, length);
      const auto from = slice<const T>(x, b);
      const auto to = slice<T>(reduced, b);
      sums.assign(sums.size(), 0.0);
      for (const std::int64_t i : kept) {
        for (std::int64_t j = 0; j < width; ++j) sums[static_cast<std::size_t>(j)] += load(from(i, j));
      }
      const double divisor = reduce == Reduce::mean && !kept.empty() ? static_cast<double>(kept.size()) : 1;
      for (std::int64_t j = 0; j < width; ++j) to(0, j) = store<T>(sums[static_cast<std::size_t>(j)] / divisor);
    }
  });
}

void spread_mean(ConstTensorView d_mean, ConstTensorView keep, TensorView d_x) {
  const std::int64_t batch = numel(d_x.shape().first(d_x.rank() - 2)), length = d_x.extent(-2), width = d_x.extent(-1);
  fill(d_x, 0);
  for_storage(d_x, [&](auto type) {
    using T = typename decltype(type)::type;
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::vector<std::int64_t> kept = kept_positions(keep, b, length);
      const auto from = slice<const T>(d_mean, b);
      const auto to = slice<T>(d_x, b);
      for (const std::int64_t i : kept) {
        for (std::int64_t j = 0; j < width; ++j) to(i, j) = store<T>(load(from(0, j)) / static_cast<double>(kept.size()));
      }
    }
  });
}

}  // namespace polyhead::nn
