// Tests images that libpng and libjpeg wrote: intact, cut off and with changed bytes. tests/python/test_image_models.py compares the
// pixels with Pillow's.
#include "polyhead/io/image_file.h"

#include <gmock/gmock.h>
#include <png.h>

#include <cstdio>

#include <jpeglib.h>

#include <random>
#include <tuple>
#include <vector>

#include "io/image_file.h"
#include "io/test_files.h"

namespace polyhead::io {
namespace {

using ::testing::HasSubstr;

constexpr int kHeight = 9, kWidth = 7;

std::vector<std::uint8_t> noise(int count) {
  std::mt19937 random(5);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

std::string png_of(const std::vector<std::uint8_t>& pixels, std::uint32_t format) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION, image.width = kWidth, image.height = kHeight, image.format = format;
  png_alloc_size_t size = 0;
  EXPECT_NE(png_image_write_to_memory(&image, nullptr, &size, 0, pixels.data(), 0, nullptr), 0);
  std::string bytes(size, '\0');
  EXPECT_NE(png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels.data(), 0, nullptr), 0);
  bytes.resize(size);
  return bytes;
}

// Returns a JPEG file. If `exif` is not empty, it is written in an APP1 segment.
std::string jpeg_of(const std::vector<std::uint8_t>& pixels, J_COLOR_SPACE space, int channels, bool progressive = false, const std::string& exif = "") {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = kWidth, info.image_height = kHeight, info.input_components = channels, info.in_color_space = space;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  if (!exif.empty()) jpeg_write_marker(&info, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(exif.data()), static_cast<unsigned>(exif.size()));
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<JSAMPLE*>(pixels.data() + info.next_scanline * static_cast<unsigned>(kWidth * channels));
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string bytes(reinterpret_cast<const char*>(memory), size);
  std::free(memory);
  return bytes;
}

std::string big_endian(std::uint64_t value, int bytes) {
  std::string text;
  while (bytes-- > 0) text += static_cast<char>(value >> (8 * bytes) & 0xff);
  return text;
}

std::string exif_of(int orientation) { return std::string("Exif\0\0MM\0*", 10) + big_endian(8, 4) + big_endian(1, 2) + big_endian(0x0112, 2) + big_endian(3, 2) + big_endian(1, 4) + big_endian(static_cast<std::uint64_t>(orientation), 2) + big_endian(0, 6); }

std::string message_of(const TestFolder& folder, const std::string& bytes, ErrorCode code = ErrorCode::format) {
  try {
    read_image(folder.write("image", bytes));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

TEST(ImageFile, PixelsOfEveryKindOfPngAreExact) {
  const TestFolder folder;
  const std::vector<std::uint8_t> rgba = noise(kHeight * kWidth * 4);
  for (const auto& [format, channels, colours] : std::initializer_list<std::tuple<std::uint32_t, int, int>>{{PNG_FORMAT_RGB, 3, 3}, {PNG_FORMAT_RGBA, 4, 3}, {PNG_FORMAT_GRAY, 1, 1}, {PNG_FORMAT_GA, 2, 1}}) {
    SCOPED_TRACE(channels);
    const Tensor pixels = read_image(folder.write("image.png", png_of(rgba, format)));
    ASSERT_EQ(pixels.shape(), (Shape{kHeight, kWidth, 3}));
    ASSERT_EQ(pixels.dtype(), DType::u8);
    for (int i = 0; i < kHeight * kWidth; ++i)
      for (int c = 0; c < 3; ++c) EXPECT_EQ(pixels.data<std::uint8_t>()[3 * i + c], rgba[static_cast<std::size_t>(i * channels + c % colours)]);
  }
}

TEST(ImageFile, PixelsOfAJpegAreCloseToThoseThatWereEncoded) {
  const TestFolder folder;
  std::vector<std::uint8_t> smooth;
  for (int y = 0; y < kHeight; ++y)
    for (int x = 0; x < kWidth; ++x) smooth.push_back(static_cast<std::uint8_t>(40 + 20 * y + 5 * x));
  for (const bool progressive : {false, true}) {
    const Tensor pixels = read_image(folder.write("image.jpg", jpeg_of(smooth, JCS_GRAYSCALE, 1, progressive)));
    ASSERT_EQ(pixels.shape(), (Shape{kHeight, kWidth, 3}));
    for (int i = 0; i < kHeight * kWidth * 3; ++i) EXPECT_NEAR(pixels.data<std::uint8_t>()[i], smooth[static_cast<std::size_t>(i / 3)], 4);
  }
}

TEST(ImageFile, AnImageIsTurnedAsItsExifOrientationSays) {
  const TestFolder folder;
  // The pixels of the image grow lighter from left to right and from top to bottom.
  std::vector<std::uint8_t> ramp;
  for (int y = 0; y < kHeight; ++y)
    for (int x = 0; x < kWidth; ++x) ramp.push_back(static_cast<std::uint8_t>(10 + 25 * x + 6 * y));
  const auto grey = [](const Tensor& pixels, std::int64_t y, std::int64_t x) { return int{pixels.data<std::uint8_t>()[(y * pixels.extent(1) + x) * 3]}; };
  const Tensor plain = read_image(folder.write("plain.jpg", jpeg_of(ramp, JCS_GRAYSCALE, 1)));
  for (int orientation = 1; orientation <= 9; ++orientation) {
    SCOPED_TRACE(orientation);
    const Tensor pixels = read_image(folder.write("turned.jpg", jpeg_of(ramp, JCS_GRAYSCALE, 1, false, exif_of(orientation))));
    const bool turned = orientation >= 5 && orientation <= 8;
    ASSERT_EQ(pixels.shape(), turned ? (Shape{kWidth, kHeight, 3}) : (Shape{kHeight, kWidth, 3}));
    // places[orientation - 1] is the position at which the stored pixel (y,x) is shown. EXIF 2.3 says for each orientation at which edges of the shown image
    // the stored row 0 and column 0 lie.
    for (std::int64_t y = 0; y < kHeight; ++y) {
      for (std::int64_t x = 0; x < kWidth; ++x) {
        const std::int64_t down = kHeight - 1 - y, right = kWidth - 1 - x;
        const std::pair<std::int64_t, std::int64_t> places[] = {{y, x}, {y, right}, {down, right}, {down, x}, {x, y}, {x, down}, {right, down}, {right, y}, {y, x}};
        const auto [row, column] = places[orientation - 1];
        EXPECT_EQ(grey(pixels, row, column), grey(plain, y, x));
      }
    }
  }
}

TEST(ImageFile, ImagesOfUnsupportedKindsAreNamed) {
  const TestFolder folder;
  const std::vector<std::uint8_t> pixels = noise(kHeight * kWidth * 4);
  EXPECT_THAT(message_of(folder, jpeg_of(pixels, JCS_CMYK, 4), ErrorCode::unsupported), HasSubstr("the colours of print (CMYK)"));
  EXPECT_THAT(message_of(folder, "GIF89a....", ErrorCode::unsupported), HasSubstr("is a GIF image; PNG and JPEG images are read"));
  EXPECT_THAT(message_of(folder, "RIFF\1\2\3\4WEBPVP8 ", ErrorCode::unsupported), HasSubstr("is a WebP image"));
  EXPECT_THAT(message_of(folder, "version https://git-lfs.github.com/spec/v1\n", ErrorCode::unsupported), HasSubstr("a pointer of Git LFS"));
  EXPECT_THAT(message_of(folder, "", ErrorCode::unsupported), HasSubstr("no PNG and no JPEG image"));
  std::string png = png_of(pixels, PNG_FORMAT_RGB);
  EXPECT_THAT(message_of(folder, png.substr(0, 50)), HasSubstr("the PNG image is damaged: the file is cut off"));
  const std::string jpeg = jpeg_of(pixels, JCS_RGB, 3);
  EXPECT_THAT(message_of(folder, jpeg.substr(0, jpeg.size() - 30)), HasSubstr("the JPEG image is damaged"));
}

// Returns the PNG file with another size in its header, and with the header's new checksum.
std::string with_size(std::string png, std::uint32_t width, std::uint32_t height) {
  png.replace(16, 8, big_endian(width, 4) + big_endian(height, 4));
  std::uint32_t crc = ~0u;
  for (std::size_t i = 12; i < 29; ++i) {
    crc ^= static_cast<unsigned char>(png[i]);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1u ? 0xedb88320u : 0u);
  }
  return png.replace(29, 4, big_endian(~crc, 4));
}

TEST(ImageFile, AHugeClaimedSizeIsRefusedBeforeMemoryIsAllocated) {
  const TestFolder folder;
  const std::string png = png_of(noise(kHeight * kWidth * 3), PNG_FORMAT_RGB);
  EXPECT_THAT(message_of(folder, with_size(png, 8192, 8192)), HasSubstr("claims 8192 x 8192 pixels, more than "));
  EXPECT_THAT(message_of(folder, with_size(png, 65537, 1)), HasSubstr("is 65537 x 1 pixels; height and width may be 1 to 65536"));
  EXPECT_THAT(message_of(folder, with_size(png, 65536, 65536)), HasSubstr("their product at most 67108864"));
  EXPECT_THAT(message_of(folder, with_size(png, 0, 4)), HasSubstr("damaged"));
}

// A cut off or changed file gives an image or an Error.
TEST(ImageFile, CutOffAndChangedFilesAreReadOrRefused) {
  const TestFolder folder;
  const std::vector<std::uint8_t> pixels = noise(kHeight * kWidth * 4);
  const std::string files[] = {png_of(pixels, PNG_FORMAT_RGB), png_of(pixels, PNG_FORMAT_GA), jpeg_of(pixels, JCS_RGB, 3, false, exif_of(6)), jpeg_of(pixels, JCS_RGB, 3, true)};
  std::mt19937 random(11);
  int refused = 0, read = 0;
  const auto attempt = [&](const std::string& bytes) {
    try {
      const Tensor image = read_image(folder.write("image", bytes));
      EXPECT_EQ(image.shape().size(), 3);
      EXPECT_EQ(image.extent(2), 3);
      ++read;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("image"));
      ++refused;
    }
  };
  for (const std::string& file : files) {
    const std::size_t signature = file.starts_with("\x89PNG") ? 8 : 3;
    for (std::size_t length = 0; length < file.size(); ++length)
      EXPECT_NE(message_of(folder, file.substr(0, length), length < signature ? ErrorCode::unsupported : ErrorCode::format), "") << length << " of " << file.size() << " bytes";
    for (int i = 0; i < 300; ++i) {
      std::string changed = file;
      for (int k = 0; k < 1 + i % 3; ++k) changed[random() % changed.size()] = static_cast<char>(random());
      attempt(changed);
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(read, 10);
}

TEST(ImageFile, AnImageIsRecognisedByItsFirstBytes) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "an_image";
  for (const auto& [start, expected] : {std::pair("\x89PNG\r\n\x1a\n", true), {"\x89PNG\r\n", false}, {"\xff\xd8\xff\xe0", true}, {"PK\3\4", false}, {"", false}}) {
    std::ofstream(path) << start;
    EXPECT_EQ(is_image(path), expected) << start;
  }
  EXPECT_FALSE(is_image(testing::TempDir()));
  EXPECT_FALSE(is_image(path / "none"));
}

}  // namespace
}  // namespace polyhead::io
