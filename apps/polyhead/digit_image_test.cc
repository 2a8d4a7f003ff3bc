#include "digit_image.h"

#include <gmock/gmock.h>

#include <fstream>

#include "models/test_error_matcher.h"

namespace polyhead::app {
namespace {

using testing::HasSubstr;

// An image [height,width,3] of grey pixels; value(y, x) is the grey.
template <class F>
Tensor grey(std::int64_t height, std::int64_t width, const F& value) {
  Tensor result(DType::u8, {height, width, 3});
  for (std::int64_t i = 0; i < height * width; ++i)
    for (std::int64_t c = 0; c < 3; ++c) result.data<std::uint8_t>()[i * 3 + c] = static_cast<std::uint8_t>(value(i / width, i % width));
  return result;
}

std::vector<float> read(const Tensor& from, std::int64_t height, std::int64_t width) {
  const Tensor image = digit_of_image(from, height, width, 16, "it");
  EXPECT_EQ(image.shape(), (Shape{height, width}));
  return {image.data<float>(), image.data<float>() + image.numel()};
}

// Whether a pixel belongs to a hook whose 20 x 20 box begins at (top, left). The hook is the box without the left half of its lower half.
bool in_hook(std::int64_t y, std::int64_t x, std::int64_t top, std::int64_t left) {
  y -= top, x -= left;
  return y >= 0 && y < 20 && x >= 0 && x < 20 && (y < 10 || x >= 10);
}

const std::vector<float> kHook{16, 16, 0, 16};

TEST(DigitImage, InkIsCutOutAndScaledOnAnyBackground) {
  for (const auto& [ground, ink] : {std::pair(255, 0), {230, 60}, {0, 255}, {40, 200}}) {
    const auto image = grey(50, 70, [&, ground = ground, ink = ink](auto y, auto x) { return in_hook(y, x, 7, 33) ? ink : ground; });  // Clang 14 captures no structured binding by [&]
    EXPECT_EQ(read(image, 2, 2), kHook) << ground;
  }
}

TEST(DigitImage, NarrowInkStaysNarrowInTheMiddle) {
  // The line is 40 x 10 pixels. The square that is cut out around it is 40 x 40, so the line has a quarter of its width.
  const Tensor line = grey(60, 60, [](auto y, auto x) { return y >= 10 && y < 50 && x >= 25 && x < 35 ? 0 : 255; });
  EXPECT_EQ(read(line, 4, 4), (std::vector<float>{0, 16, 16, 0, 0, 16, 16, 0, 0, 16, 16, 0, 0, 16, 16, 0}));
}

TEST(DigitImage, PixelsAreMeansOfAreas) {
  // The 3 x 3 pixels around the ink become 2 x 2 pixels, each the mean of 1.5 x 1.5: the centre pixel belongs to all four.
  const Tensor dots = grey(5, 5, [](auto y, auto x) { return (y == 1 && x == 1) || (y == 3 && x == 3) || (y == 2 && x == 2) ? 255 : 0; });
  const std::vector<float> image = read(dots, 2, 2);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(image[i], i == 1 || i == 2 ? 0.25 / 1.25 * 16 : 16, 1e-5) << i;
}

TEST(DigitImage, AnImageOfTheModelsSizeIsNotCutOut) {
  EXPECT_EQ(read(grey(2, 3, [](auto y, auto x) { return y == 1 && x > 0 ? 100 * x : 0; }), 2, 3), (std::vector<float>{0, 0, 0, 0, 8, 16}));
}

TEST(DigitImage, AnImageWithoutInkIsRefused) {
  const Tensor white = grey(9, 9, [](auto, auto) { return 255; }), pale = grey(9, 9, [](auto y, auto) { return y == 4 ? 240 : 255; }), one = grey(1, 1, [](auto, auto) { return 7; });
  EXPECT_ERROR(digit_of_image(white, 8, 8, 16, "'a.png'"), unsupported, HasSubstr("'a.png' shows no digit: its pixels differ from its border by at most 0 %"));
  EXPECT_ERROR(digit_of_image(pale, 8, 8, 16, "it"), unsupported, HasSubstr("by at most 6 %"));
  EXPECT_ERROR(digit_of_image(one, 8, 8, 16, "it"), unsupported, HasSubstr("shows no digit"));
}

}  // namespace
}  // namespace polyhead::app
