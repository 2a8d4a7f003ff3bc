#include "distributed/partial_results.h"

#include <cmath>
#include <limits>

#include "core/dispatch.h"
#include "core/index.h"
#include "core/parallel.h"

namespace polyhead::distributed {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The factors by which two partial results are multiplied before they are added, and the lse of their sum. All are NaN if either lse is NaN.
struct Shares {
  double first, second, lse;

  Shares(double a, double b) {
    const double largest = b > a || std::isnan(b) ? b : a;
    first = std::exp(a - largest), second = std::exp(b - largest);
    const double sum = first + second;
    lse = largest + std::log(sum), first /= sum, second /= sum;
  }
};

template <std::size_t Count>
std::array<Strides, Count> row_strides(const std::array<ConstTensorView, Count>& views) {
  std::array<Strides, Count> strides;
  for (std::size_t i = 0; i < Count; ++i) strides[i] = views[i].strides().first(views[i].rank() - 1);
  return strides;
}

double load_floating(const ConstTensorView& view, std::int64_t at) {
  double value = 0;
  dispatch_floating(view.dtype(), [&](auto type) { value = static_cast<double>(load(view.data<typename decltype(type)::type>()[at])); });
  return value;
}

}  // namespace

void join(const ConstTensorView& out, const ConstTensorView& lse, const TensorView& sums, const TensorView& all_lse, Executor* executor) {
  const Shape rows = out.shape().first(out.rank() - 1);
  const std::int64_t width = out.extent(-1), per_piece = rows.size() > 0 ? rows[-1] : 1;
  if (numel(rows) == 0) return;
  const Shape outer = rows.first(rows.size() - 1);
  const auto offset = [&](const ConstTensorView& view, std::int64_t i) { return offset_at(outer, view.strides().first(outer.size()), i); };
  dispatch_floating(out.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (std::is_floating_point_v<T>) {
      parallel_for(numel(outer), 1, executor, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
          const T *from = out.data<T>() + offset(out, i), *from_lse = lse.data<T>() + offset(lse, i);
          T* to = sums.data<T>() + offset(sums, i);
          double* to_lse = all_lse.data<double>() + offset(all_lse, i);
          for (std::int64_t t = 0; t < per_piece; ++t, from += out.stride(-2), from_lse += lse.stride(-2), to += sums.stride(-2), to_lse += all_lse.stride(-2)) {
            const double part = static_cast<double>(*from_lse);
            if (part == -kInfinity) continue;
            if (*to_lse == -kInfinity) {
              std::copy_n(from, width, to), *to_lse = part;
              continue;
            }
            const Shares shares(*to_lse, part);
            const T a = static_cast<T>(shares.first), b = static_cast<T>(shares.second);
            for (std::int64_t d = 0; d < width; ++d) to[d] = a * to[d] + b * from[d];
            *to_lse = shares.lse;
          }
        }
      });
    }
  });
}

void join_sink(const ConstTensorView& sink, const TensorView& sums, const TensorView& all_lse) {
  const std::int64_t width = sums.extent(-1);
  dispatch_floating(sums.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    for_each_offset<3>(sums.shape().first(sums.rank() - 1), row_strides<3>({sink, sums, all_lse}), [&](const auto& at) {
      const double z = load_floating(sink, at[0]);
      double& lse = all_lse.data<double>()[at[2]];
      if (z == -kInfinity) return;
      if (lse == -kInfinity) {
        lse = z;
        return;
      }
      const Shares shares(lse, z);
      T* const row = sums.data<T>() + at[1];
      for (std::int64_t d = 0; d < width; ++d) row[d] = store<T>(shares.first * static_cast<double>(load(row[d])));
      lse = shares.lse;
    });
  });
}

void differentiate_sink(const ConstTensorView& sink, const ConstTensorView& out, const ConstTensorView& lse, const ConstTensorView& d_out, const TensorView& d_sink) {
  const std::int64_t width = out.extent(-1);
  dispatch_floating(out.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const ConstTensorView to = d_sink;
    for_each_offset<5>(out.shape().first(out.rank() - 1), row_strides<5>({sink, out, lse, d_out, to}), [&](const auto& at) {
      const double z = load_floating(sink, at[0]), p = z == -kInfinity ? 0 : std::exp(z - load_floating(lse, at[2]));
      double delta = 0;
      const T *o = out.data<T>() + at[1], *d = d_out.data<T>() + at[3];
      for (std::int64_t i = 0; i < width; ++i) delta += static_cast<double>(load(o[i * out.stride(-1)])) * static_cast<double>(load(d[i * d_out.stride(-1)]));
      d_sink.data<double>()[at[4]] = p == 0 ? 0 : -p * delta;
    });
  });
}

}  // namespace polyhead::distributed
