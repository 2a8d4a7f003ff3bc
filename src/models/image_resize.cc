// The resampling of Pillow: each target pixel is a weighted mean of the source pixels under the filter, which is stretched when the image shrinks
// ("antialiasing"). Weights are rounded to 22 binary digits and each pass to 8 bits, so that the results have Pillow's bits.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/text.h"
#include "polyhead/models/image_processor.h"

namespace polyhead::models {
namespace {

constexpr int kDigits = 32 - 8 - 2;  // binary digits of a weight; 2 bits stay free for filters with negative lobes

double sinc(double x) { return x == 0 ? 1 : std::sin(x * std::numbers::pi) / (x * std::numbers::pi); }

struct Filter {
  double support;  // the filter is 0 beyond this distance
  double (*value)(double x);
};

// The filters, in the order of Resampling.
constexpr Filter kFilters[] = {
    {3, [](double x) { return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0; }},
    {1, [](double x) { return std::abs(x) < 1 ? 1 - std::abs(x) : 0; }},
    {2,
     [](double x) {
       constexpr double a = -0.5;
       x = std::abs(x);
       if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
       return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
     }},
    {0.5, [](double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }},
    {1, [](double x) { return std::abs(x) >= 1 ? 0 : x == 0 ? 1 : sinc(x) * (0.54 + 0.46 * std::cos(x * std::numbers::pi)); }},
};

// A pixel of the result is a weighted sum of neighbouring pixels of the source. `first` is the index of the first of these source pixels; weights are integers,
// multiplied by 2^kDigits.
struct Span {
  std::int64_t first = 0;
  std::vector<std::int32_t> weights;
};

std::vector<Span> spans(std::int64_t from, std::int64_t to, const Filter& filter) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), stretch = std::max(scale, 1.0), support = filter.support * stretch;
  std::vector<Span> all(static_cast<std::size_t>(to));
  for (std::int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale, inverse = 1 / stretch;
    const std::int64_t first = std::max<std::int64_t>(0, static_cast<std::int64_t>(centre - support + 0.5));
    const std::int64_t last = std::min(from, static_cast<std::int64_t>(centre + support + 0.5));
    std::vector<double> exact;
    double sum = 0;
    for (std::int64_t s = first; s < last; ++s) sum += exact.emplace_back(filter.value((static_cast<double>(s) - centre + 0.5) * inverse));
    Span& span = all[static_cast<std::size_t>(i)];
    span.first = first;
    for (double weight : exact) {
      if (sum != 0) weight /= sum;
      span.weights.push_back(static_cast<std::int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << kDigits)));
    }
  }
  return all;
}

// One pass of resampling along an axis whose elements are `stride` apart. The image has `lines` lines, `line_stride` apart in the source and
// `out_line_stride` apart in the result. `inner` adjacent elements have the same position on the axis.
struct Pass {
  std::int64_t lines, line_stride, out_line_stride, stride, inner;
};

void resample(const std::uint8_t* from, std::uint8_t* to, const Pass& pass, const std::vector<Span>& spans) {
  for (std::int64_t line = 0; line < pass.lines; ++line) {
    const std::uint8_t* const in = from + line * pass.line_stride;
    std::uint8_t* out = to + line * pass.out_line_stride;
    for (const Span& span : spans) {
      for (std::int64_t c = 0; c < pass.inner; ++c) {
        std::int32_t sum = 1 << (kDigits - 1);
        const std::uint8_t* pixel = in + span.first * pass.stride + c;
        for (const std::int32_t weight : span.weights) sum += *pixel * weight, pixel += pass.stride;
        *out++ = static_cast<std::uint8_t>(std::clamp(sum >> kDigits, 0, 255));
      }
    }
  }
}

}  // namespace

Tensor resized(ConstTensorView image, ImageProcessor::Size size, Resampling resampling) {
  constexpr const char* kOperation = "resized";
  require(image && image.dtype() == DType::u8 && image.rank() == 3 && image.extent(2) == 3 && image.numel() > 0, kOperation, ": image is ", image.dtype(), " ", image.shape(),
          "; it must be uint8 [height,width,3], with at least one pixel");
  require(size.height >= 1 && size.width >= 1, kOperation, ": the new size is ", size.height, " x ", size.width, "; both must be at least 1");
  const Filter& filter = kFilters[static_cast<std::size_t>(resampling)];
  Tensor current = Tensor::copy_of(image);
  const auto along_rows = [&] {
    const std::int64_t height = current.extent(0), width = current.extent(1);
    if (width == size.width) return;
    Tensor next = Tensor::uninitialised(DType::u8, {height, size.width, 3});
    resample(current.data<std::uint8_t>(), next.data<std::uint8_t>(), {.lines = height, .line_stride = 3 * width, .out_line_stride = 3 * size.width, .stride = 3, .inner = 3}, spans(width, size.width, filter));
    current = std::move(next);
  };
  const auto along_columns = [&] {
    const std::int64_t height = current.extent(0), row = 3 * current.extent(1);
    if (height == size.height) return;
    Tensor next = Tensor::uninitialised(DType::u8, {size.height, current.extent(1), 3});
    resample(current.data<std::uint8_t>(), next.data<std::uint8_t>(), {.lines = 1, .line_stride = 0, .out_line_stride = 0, .stride = row, .inner = row}, spans(height, size.height, filter));
    current = std::move(next);
  };
  // Rounding depends on the order of the two passes. As in Pillow 13, the height changes first if it shrinks by more than twice as many pixels as the width.
  const std::int64_t rows_less = image.extent(0) - size.height, columns_less = image.extent(1) - size.width;
  const bool columns_first = rows_less > 0 && rows_less > 2 * columns_less;
  if (columns_first) along_columns();
  along_rows();
  along_columns();
  return current;
}

}  // namespace polyhead::models
