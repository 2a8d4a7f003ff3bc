#include "polyhead/nn/dropout.h"

#include <cmath>
#include <limits>

#include "core/philox.h"
#include "cpu/select.h"
#include "nn/check.h"
#include "nn/rows.h"

namespace polyhead::nn {

void dropout(ConstTensorView x_view, TensorView y_view, double p, std::uint64_t seed, Executor* executor) {
  constexpr const char* kOperation = "dropout";
  require(static_cast<bool>(x_view), kOperation, ": x is missing");
  require(is_floating(x_view.dtype()) && x_view.rank() >= 1, kOperation, ": x is ", x_view.dtype(), " ", x_view.shape(),
          "; it must be a floating tensor [*,E]");
  require(p >= 0 && p <= 1, kOperation, ": p is ", p, "; it must be in [0,1]");
  require_output(kOperation, {"y", y_view}, {"x", x_view}, {});
  const std::int64_t width = x_view.extent(-1), rows = numel(x_view.shape().first(x_view.rank() - 1));
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
  require(rows <= kMost && width <= kMost, kOperation, ": x is ", x_view.shape(), "; there may be at most ", kMost, " rows and as many columns");
  if (x_view.numel() == 0) return;
  const auto below = static_cast<std::int64_t>(std::llround(p * 0x1p32));
  constexpr double kNanoseconds = 2;  // time to generate the keep bit of one element
  dispatch_floating(x_view.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const Rows<const T> x(x_view);
    const Rows<T> y(y_view);
    const A scale = static_cast<A>(dropout_scale(p));
    parallel_for(rows, row_grain(width, kNanoseconds), executor, [&](std::int64_t first, std::int64_t last) {
      const auto& kernels = cpu::current_kernels_of<cpu::DropoutKernels>();
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(width + kernels.margin));
      const std::uint8_t* const keep = bytes.data();
      const auto drop_row = [&](const T* from, auto from_step, T* to, auto to_step) {
        for (std::int64_t e = 0; e < width; ++e) to[e * to_step] = store<T>(keep[e] != 0 ? load(from[e * from_step]) * scale : A{0});
      };
      for (std::int64_t row = first; row < last; ++row) {
        kernels.keep_row(width, static_cast<std::uint32_t>(row), seed, below, bytes.data());
        const auto from = x[row];
        const auto to = y[row];
        from.step == 1 && to.step == 1 ? drop_row(from.data, kOne, to.data, kOne) : drop_row(from.data, from.step, to.data, to.step);
      }
    });
  });
}

}  // namespace polyhead::nn
