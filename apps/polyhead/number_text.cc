#include "number_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <vector>

#include "core/text.h"
#include "format.h"
#include "text_layout.h"

namespace polyhead::app {
namespace {

constexpr std::int64_t kGap = -1;  // marks the place of the indices that are not shown

// The indices of one dimension that are shown: all, or `edge` at each end with a gap between.
std::vector<std::int64_t> shown(std::int64_t extent, std::int64_t edge) {
  std::vector<std::int64_t> list;
  for (std::int64_t i = 0; i < extent; ++i) {
    if (extent <= 2 * edge || i < edge || i >= extent - edge) {
      list.push_back(i);
    } else if (i == edge) {
      list.push_back(kGap);
    }
  }
  return list;
}

std::int64_t count_shown(const Shape& shape, std::int64_t edge) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= std::min(extent, 2 * edge);
  return count;
}

class Printer {
 public:
  Printer(ConstTensorView values, const NumberStyle& style) : values_(Tensor::copy_of(values, DType::f64)), style_(style) {
    const Shape& shape = values_.shape();
    for (edge_ = 3; edge_ > 1 && count_shown(shape, edge_) > style.limit;) --edge_;
    if (numel(shape) <= style.limit) edge_ = INT64_MAX / 2;
    column_edge_ = edge_;
    choose_format();
    const std::size_t columns = std::max<std::size_t>((style.width - std::min<std::size_t>(style.width, 2)) / (width_ + 1), 3);
    if (!shape.empty() && static_cast<std::size_t>(std::min(shape[-1], 2 * column_edge_)) > columns) {
      column_edge_ = static_cast<std::int64_t>(columns - 1) / 2;
    }
  }

  std::string text() {
    const Shape& shape = values_.shape();
    if (shape.empty()) return cat("  ", number(values_.data<double>()[0]), "\n");
    if (values_.numel() == 0) return "  no numbers: an extent is 0\n";
    walk(values_, {});
    if (printed_ < values_.numel()) append(text_, cat("  (", printed_, " of ", values_.numel(), " numbers shown)\n"));
    return text_;
  }

 private:
  // Chooses scientific notation if the largest number is too large or too small for fixed point.
  void choose_format() {
    const std::span numbers(values_.data<double>(), static_cast<std::size_t>(values_.numel()));
    double largest = 0;
    const bool whole = std::ranges::all_of(numbers, [](double x) { return x == std::trunc(x); });
    for (const double x : numbers) largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
    scientific_ = largest >= 1e7 || (!whole && largest > 0 && largest < std::pow(10, -style_.digits + 1));
    for (const double x : numbers) width_ = std::max(width_, number(x).size());
  }

  std::string number(double x) const {
    if (!scientific_ || !std::isfinite(x)) return fixed(x, style_.digits);
    std::array<char, 64> text{};
    const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), x, std::chars_format::scientific, style_.digits);
    return {text.data(), end};
  }

  // Prints, for each matrix, a heading such as "[1,0]" and then the rows.
  void walk(ConstTensorView part, const Dims& at) {
    if (part.rank() == 1) return row(part.data<double>());
    for (const std::int64_t i : shown(part.extent(0), edge_)) {
      if (i == kGap) {
        append(text_, "  …\n");
        continue;
      }
      Dims next = at;
      next.push_back(i);
      if (part.rank() == 3) append(text_, cat("  ", next, "\n"));
      walk(part.select(0, i), next);
    }
  }

  void row(const double* numbers) {
    append(text_, " ");
    for (const std::int64_t i : shown(values_.extent(-1), column_edge_)) {
      append(text_, cat(" ", i == kGap ? std::string("…") : pad_left(number(numbers[i]), width_)));
      printed_ += i != kGap;
    }
    append(text_, "\n");
  }

  Tensor values_;
  const NumberStyle& style_;
  std::int64_t edge_ = 0, column_edge_ = 0, printed_ = 0;
  bool scientific_ = false;
  std::size_t width_ = 1;
  std::string text_;
};

}  // namespace

std::string number_text(ConstTensorView values, const NumberStyle& style) { return Printer(values, style).text(); }

}  // namespace polyhead::app
