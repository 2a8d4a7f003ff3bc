#include "digit_image.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/text.h"
#include "polyhead/error.h"
#include "training/figures.h"

namespace polyhead::app {
namespace {

constexpr double kLeastContrast = 0.1;  // pixels of a digit differ from the background by at least this share of the range from black to white
constexpr double kInkOfBox = 0.3;       // a pixel with at least this share of the largest ink belongs to the digit; paper and noise have less

// How much ink each pixel of an image has: 0 on the background, up to 1.
struct Ink {
  std::int64_t height, width;
  std::vector<double> of;
  double most = 0;  // the largest element of the vector `of`
  double at(std::int64_t y, std::int64_t x) const { return y < 0 || y >= height || x < 0 || x >= width ? 0 : of[static_cast<std::size_t>(y * width + x)]; }
};

Ink ink_of(ConstTensorView image, const std::string& name) {
  const Tensor whole = Tensor::copy_of(image);
  Ink ink{.height = whole.extent(0), .width = whole.extent(1), .of = {}};
  const auto* rgb = whole.data<std::uint8_t>();
  for (std::int64_t i = 0; i < ink.height * ink.width; ++i, rgb += 3) ink.of.push_back((0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]) / 255);  // the brightness (luma) that ITU-R BT.601 defines
  std::vector<double> border;
  for (std::int64_t y = 0; y < ink.height; ++y)
    for (std::int64_t x = 0; x < ink.width; x += y == 0 || y == ink.height - 1 ? 1 : std::max<std::int64_t>(1, ink.width - 1)) border.push_back(ink.at(y, x));
  const auto middle = border.begin() + std::ssize(border) / 2;
  std::ranges::nth_element(border, middle);
  const double ground = *middle;
  for (double& x : ink.of) x = std::max(0.0, ground >= 0.5 ? ground - x : x - ground);
  ink.most = *std::ranges::max_element(ink.of);
  if (ink.most < kLeastContrast)
    fail(ErrorCode::unsupported, name, " shows no digit: its pixels differ from its border by at most ", training::fixed(100 * ink.most, 0), " % of the range from black to white; an image of a digit has dark ink on a light background, or light ink on a dark one");
  return ink;
}

// The mean ink of the area [top,top + side) x [left,left + side). Parts of the area outside the image count as 0.
double mean_ink(const Ink& ink, double top, double left, double side) {
  double sum = 0;
  for (auto y = static_cast<std::int64_t>(std::floor(top)); static_cast<double>(y) < top + side; ++y) {
    const double high = std::min(top + side, static_cast<double>(y + 1)) - std::max(top, static_cast<double>(y));
    for (auto x = static_cast<std::int64_t>(std::floor(left)); static_cast<double>(x) < left + side; ++x)
      sum += ink.at(y, x) * high * (std::min(left + side, static_cast<double>(x + 1)) - std::max(left, static_cast<double>(x)));
  }
  return sum / (side * side);
}

}  // namespace

Tensor digit_of_image(ConstTensorView given, std::int64_t height, std::int64_t width, double white, const std::string& name) {
  const Ink ink = ink_of(given, name);
  // Each pixel of the result is the mean over a square of the image: `side` is the length of the square, (top, left) the corner of the first square.
  double side = 1, top = 0, left = 0;
  if (ink.height != height || ink.width != width) {
    std::int64_t first_y = ink.height, last_y = -1, first_x = ink.width, last_x = -1;
    for (std::int64_t y = 0; y < ink.height; ++y)
      for (std::int64_t x = 0; x < ink.width; ++x)
        if (ink.at(y, x) >= kInkOfBox * ink.most) first_y = std::min(first_y, y), last_y = y, first_x = std::min(first_x, x), last_x = std::max(last_x, x);
    const auto rows = static_cast<double>(height), columns = static_cast<double>(width);
    side = std::max(static_cast<double>(last_y + 1 - first_y) / rows, static_cast<double>(last_x + 1 - first_x) / columns);
    top = (static_cast<double>(first_y + last_y + 1) - side * rows) / 2, left = (static_cast<double>(first_x + last_x + 1) - side * columns) / 2;
  }
  Tensor image(DType::f32, {height, width});
  float* const pixels = image.data<float>();
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x) pixels[y * width + x] = static_cast<float>(mean_ink(ink, top + side * static_cast<double>(y), left + side * static_cast<double>(x), side));
  const float largest = *std::max_element(pixels, pixels + height * width);
  for (std::int64_t i = 0; i < height * width; ++i) pixels[i] *= static_cast<float>(white) / largest;
  for (std::int64_t i = 0; i < height * width; ++i) pixels[i] = std::min(pixels[i], static_cast<float>(white));
  return image;
}

}  // namespace polyhead::app
