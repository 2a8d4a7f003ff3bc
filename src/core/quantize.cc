#include "polyhead/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/dispatch.h"
#include "core/index.h"
#include "core/overlap.h"
#include "core/parallel.h"

namespace polyhead {
namespace {

constexpr float kLargest = 127;

// Rounds to the nearest integer, ties to even, for |x| below 2^22: float32 numbers from 2^23 to 2^24 are integers, so adding 1.5 * 2^23 rounds x.
float nearest(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

// Writes x / scale, rounded to int8, and returns the scale.
float quantize_row(const std::vector<float>& x, std::int8_t* to, std::int64_t stride) {
  float largest = 0, non_finite = 0;
  for (const float value : x) largest = std::max(largest, std::abs(value)), non_finite += value * 0;
  const float scale = non_finite == 0 ? largest / kLargest : std::numeric_limits<float>::quiet_NaN();
  const auto width = static_cast<std::int64_t>(x.size());
  for (std::int64_t i = 0; i < width; ++i) {
    const float quotient = scale > 0 ? x[static_cast<std::size_t>(i)] / scale : 0;
    to[i * stride] = static_cast<std::int8_t>(nearest(std::min(std::max(quotient, -kLargest), kLargest)));
  }
  return scale;
}

}  // namespace

void quantize_rows(ConstTensorView x, TensorView out, TensorView scale, Executor* executor) {
  constexpr const char* kOperation = "quantize_rows";
  require(x && out && scale, kOperation, ": a tensor is missing");
  require(is_floating(x.dtype()), kOperation, ": x is ", x.dtype(), "; it must be floating");
  require(x.rank() >= 1, kOperation, ": x is ", x.shape(), "; it must be [..,W]");
  require(out.dtype() == DType::i8 && out.shape() == x.shape(), kOperation, ": out is ", out.dtype(), " ", out.shape(),
          "; it must be int8 ", x.shape());
  const Shape rows = x.shape().first(x.rank() - 1);
  require(scale.dtype() == DType::f32 && scale.shape() == rows, kOperation, ": scale is ", scale.dtype(), " ", scale.shape(),
          "; it must be float32 ", rows);
  const Operand outputs[] = {{"out", out}, {"scale", scale}}, inputs[] = {{"x", x}};
  require_no_overlap(kOperation, outputs, inputs);

  const std::int64_t width = x.extent(-1);
  const auto strides_of = [&](const Strides& strides) { return strides.first(rows.size()); };
  dispatch_floating(x.dtype(), [&](auto type) {
    const auto* source = x.data<typename decltype(type)::type>();
    parallel_for(numel(rows), 1'000'000 / (width + 1) + 1, executor, [&](std::int64_t first, std::int64_t last) {
      std::vector<float> row(static_cast<std::size_t>(width));
      for (std::int64_t i = first; i < last; ++i) {
        const auto* from = source + offset_at(rows, strides_of(x.strides()), i);
        for (std::int64_t j = 0; j < width; ++j) row[static_cast<std::size_t>(j)] = static_cast<float>(load(from[j * x.stride(-1)]));
        scale.data<float>()[offset_at(rows, scale.strides(), i)] =
            quantize_row(row, out.data<std::int8_t>() + offset_at(rows, strides_of(out.strides()), i), out.stride(-1));
      }
    });
  });
}

}  // namespace polyhead
