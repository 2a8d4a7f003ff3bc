#include "polyhead/nn/rotary.h"

#include "core/overlap.h"
#include "core/parallel.h"
#include "core/text.h"
#include "nn/rows.h"
#include "polyhead/tensor.h"

namespace polyhead::nn {

void rotate(ConstTensorView cos, ConstTensorView sin, RotaryOrder order, Rotation rotation, TensorView x, Executor* executor) {
  constexpr const char* kOperation = "rotate";
  require(x && x.rank() >= 3 && is_floating(x.dtype()), kOperation, ": x must be a floating tensor [*,N,T,H]");
  require(cos && sin && cos.rank() >= 2 && cos.rank() < x.rank() && cos.shape() == sin.shape(), kOperation,
          ": cos and sin must be tables of one shape, which broadcasts to [*,T,R/2]");
  require(is_floating(cos.dtype()) && is_floating(sin.dtype()), kOperation, ": cos and sin must be floating, not ", cos.dtype(), " and ", sin.dtype());
  const std::int64_t pairs = cos.extent(-1);
  require(2 * pairs <= x.extent(-1), kOperation, ": the tables ", cos.shape(), " rotate ", 2 * pairs, " features; a head has ", x.extent(-1));
  const Operand output{"x", x}, tables[] = {{"cos", cos}, {"sin", sin}};
  require_separate(kOperation, {&output, 1}, tables);
  Shape shape = x.shape();
  shape[-1] = pairs;
  const DType precise = accumulation_dtype(x.dtype());
  const Tensor cos_copy = Tensor::copy_of(cos, precise), sin_copy = Tensor::copy_of(sin, precise);
  const auto for_all_heads = [&](ConstTensorView table) { return (table.rank() > 2 ? table.unsqueeze(-3) : table).expand(shape); };
  dispatch_floating(x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const Rows<const A> cosines(for_all_heads(cos_copy)), sines(for_all_heads(sin_copy));
    const Rows<T> rows(x);
    const std::int64_t step = order == RotaryOrder::halves ? 1 : 2, distance = order == RotaryOrder::halves ? pairs : 1;
    const A sign = rotation == Rotation::forward ? A{1} : A{-1};
    parallel_for(rows.count(), row_grain(pairs, 2), executor, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        for (std::int64_t i = 0; i < pairs; ++i) {
          T &low = rows.at(row, i * step), &high = rows.at(row, i * step + distance);
          const A c = cosines.at(row, i), s = sign * sines.at(row, i), a = load(low), b = load(high);
          low = store<T>(a * c - b * s);
          high = store<T>(a * s + b * c);
        }
      }
    });
  });
}

}  // namespace polyhead::nn
