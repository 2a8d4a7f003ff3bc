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
  require(is_floating(cos.dtype()) && is_floating(sin.dtype()), kOperation, ": cos and sin must be floating, not ", cos.dtype(), " and ",
          sin.dtype());
  const std::int64_t pairs = cos.extent(-1);
  require(2 * pairs <= x.extent(-1), kOperation, ": the tables ", cos.shape(), " rotate ", 2 * pairs, " features; a head has ",
          x.extent(-1));
  const Operand output{"x", x}, tables[] = {{"cos", cos}, {"sin", sin}};
  require_no_overlap(kOperation, {&output, 1}, tables);
  Shape shape = x.shape();
  shape[-1] = pairs;
  const DType precise = accumulation_dtype(x.dtype());
  // Returns the caller's table if the loop below can read it, else a converted copy.
  const auto readable = [&](ConstTensorView table, Tensor& converted) -> ConstTensorView {
    if (table.dtype() == precise && table.stride(-1) == 1) return table;
    return converted = Tensor::copy_of(table, precise);
  };
  Tensor converted_cos, converted_sin;
  const ConstTensorView readable_cos = readable(cos, converted_cos), readable_sin = readable(sin, converted_sin);
  const auto for_all_heads = [&](ConstTensorView table) { return (table.rank() > 2 ? table.unsqueeze(-3) : table).expand(shape); };
  dispatch_floating(x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const Rows<const A> cosines(for_all_heads(readable_cos)), sines(for_all_heads(readable_sin));
    const Rows<T> rows(x);
    const A sign = rotation == Rotation::forward ? A{1} : A{-1};
    // Calls pass the compile-time constants kOne or kTwo for step or distance, so that the compiler vectorises this loop.
    const auto rotate_row = [pairs, sign](T* at, auto step, auto distance, const A* cosine, const A* sine) {
      for (std::int64_t i = 0; i < pairs; ++i) {
        T &low = at[i * step], &high = at[i * step + distance];
        const A c = cosine[i], s = sign * sine[i], a = load(low), b = load(high);
        low = store<T>(a * c - b * s);
        high = store<T>(a * s + b * c);
      }
    };
    constexpr std::integral_constant<std::int64_t, 2> kTwo;
    const std::int64_t stride = x.stride(-1);
    parallel_for(pairs == 0 ? 0 : rows.count(), row_grain(pairs, 2), executor, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        T* const at = &rows.at(row, 0);
        const A *const cosine = &cosines.at(row, 0), *const sine = &sines.at(row, 0);
        if (order == RotaryOrder::halves) {
          stride == 1 ? rotate_row(at, kOne, pairs, cosine, sine) : rotate_row(at, stride, pairs * stride, cosine, sine);
        } else {
          stride == 1 ? rotate_row(at, kTwo, kOne, cosine, sine) : rotate_row(at, 2 * stride, stride, cosine, sine);
        }
      }
    });
  });
}

}  // namespace polyhead::nn
