#include "polyhead/io/image_file.h"

#include <array>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/text.h"
#include "io/foreign.h"
#include "io/image_file.h"

namespace polyhead::io {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kPng = "\x89PNG\r\n\x1a\n"sv, kJpeg = "\xff\xd8\xff"sv;

// Kinds of images that cannot be read, each recognised by the bytes at an offset in the file.
struct Kind {
  std::size_t at;
  std::string_view bytes, name;
};
constexpr Kind kKinds[] = {{0, "GIF8"sv, "a GIF image"},    {8, "WEBP"sv, "a WebP image"},      {0, "BM"sv, "a BMP image"},          {0, "II*\0"sv, "a TIFF image"},
                           {0, "MM\0*"sv, "a TIFF image"},  {4, "ftypavif"sv, "an AVIF image"}, {4, "ftyphei"sv, "a HEIF image"},    {4, "ftypmif1"sv, "a HEIF image"},
                           {0, "\xff\x0a"sv, "a JPEG XL image"}, {0, "<svg"sv, "an SVG drawing"}, {0, "\0\0\1\0"sv, "an icon"}};

[[noreturn]] void refuse(const FileBytes& file) {
  const std::string_view text = file.text();
  for (const Kind& kind : kKinds)
    if (text.size() >= kind.at && text.substr(kind.at).starts_with(kind.bytes)) fail(ErrorCode::unsupported, file.name(), " is ", kind.name, "; PNG and JPEG images are read");
  const std::string foreign = foreign_kind(text);
  fail(ErrorCode::unsupported, file.name(), " is ", foreign.empty() ? "no PNG and no JPEG image" : foreign);
}

#ifdef POLYHEAD_IMAGES
// Turns an image like Pillow's ImageOps.exif_transpose: orientations 2 to 4 mirror it or rotate it by 180 degrees, 5 to 8 also exchange rows and columns.
ConstTensorView upright(ConstTensorView pixels, int orientation) {
  const auto reversed = [](ConstTensorView view, int axis) { return view.slice(axis, 0, view.extent(axis), -1); };
  ConstTensorView view = orientation >= 5 ? pixels.transpose(0, 1) : pixels;
  if (orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7) view = reversed(view, 1);
  if (orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8) view = reversed(view, 0);
  return view;
}
#endif

}  // namespace

bool is_image(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::array<char, kPng.size()> start{};
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), start.size());
  const std::string_view text(start.data(), static_cast<std::size_t>(file.gcount()));
  return text.starts_with(kPng) || text.starts_with(kJpeg);
}

void require_image_size(const FileBytes& file, std::int64_t height, std::int64_t width, std::int64_t most_per_byte) {
  constexpr std::int64_t kMostSide = 1 << 16, kMostPixels = 1 << 26;
  if (height < 1 || width < 1 || height > kMostSide || width > kMostSide || height * width > kMostPixels)
    fail(ErrorCode::format, file.name(), ": the image is ", width, " x ", height, " pixels; height and width may be 1 to ", kMostSide, ", and their product at most ", kMostPixels);
  if (height * width / most_per_byte > std::ssize(file.bytes))
    fail(ErrorCode::format, file.name(), ": the image claims ", width, " x ", height, " pixels, more than ", file.bytes.size(), " bytes can hold");
}

int exif_orientation(std::span<const std::byte> tiff) {
  constexpr std::uint32_t kOrientation = 0x0112, kShort = 3;
  if (tiff.size() < 8) return 1;
  const bool little = tiff[0] == std::byte{'I'};
  if (tiff[0] != tiff[1] || (!little && tiff[0] != std::byte{'M'})) return 1;
  const auto number = [&](std::size_t at, std::size_t bytes) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) value = value << 8 | std::to_integer<std::uint32_t>(tiff[little ? at + bytes - 1 - i : at + i]);
    return value;
  };
  const std::size_t directory = number(4, 4);
  if (number(2, 2) != 42 || directory > tiff.size() - 2) return 1;
  const std::size_t count = number(directory, 2);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t entry = directory + 2 + 12 * i;
    if (entry + 12 > tiff.size()) return 1;
    if (number(entry, 2) != kOrientation) continue;
    const std::uint32_t value = number(entry + 8, 2);
    return number(entry + 2, 2) == kShort && value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Tensor read_image(const std::filesystem::path& path) {
  const FileBytes file = read_file(path);
  const bool png = file.text().starts_with(kPng);
  if (!png && !file.text().starts_with(kJpeg)) refuse(file);
#ifdef POLYHEAD_IMAGES
  DecodedImage image = png ? read_png(file) : read_jpeg(file);
  return image.orientation == 1 ? std::move(image.pixels) : Tensor::copy_of(upright(image.pixels, image.orientation));
#else
  fail(ErrorCode::unsupported, file.name(), ": this polyhead was built without image files (POLYHEAD_IMAGES=OFF)");
#endif
}

}  // namespace polyhead::io
