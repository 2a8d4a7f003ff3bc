#include <png.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/text.h"
#include "io/image_file.h"

namespace polyhead::io {
namespace {

// Upper bound of the pixels per byte of a PNG file: deflate unpacks one byte to at most 1032, and a pixel may have one bit.
constexpr std::int64_t kMostPixelsPerByte = 1040 * 8;
constexpr png_alloc_size_t kMostChunk = 8 << 20;  // maximum size of an unpacked colour profile or text, in bytes

struct PngSource {
  const FileBytes* file;
  std::size_t at = 0;
  std::string error;
};

void read_bytes(png_structp png, png_bytep to, std::size_t count) {
  auto* const source = static_cast<PngSource*>(png_get_io_ptr(png));
  if (count > source->file->bytes.size() - source->at) png_error(png, "the file is cut off");
  std::memcpy(to, source->file->bytes.data() + source->at, count);
  source->at += count;
}

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  static_cast<PngSource*>(png_get_error_ptr(png))->error = message;
  png_longjmp(png, 1);
}

struct Decoder {
  PngSource source;
  png_structp png = nullptr;
  png_infop info = nullptr;
  DecodedImage image;
  std::vector<png_bytep> rows;
  png_uint_32 height = 0, width = 0;

  explicit Decoder(const FileBytes& file) : source{&file, 0, {}} {}
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() { png_destroy_read_struct(&png, &info, nullptr); }

  // The functions with setjmp return false after an error, whose message is in `source`. They have no objects with destructors, which libpng's
  // longjmp would skip.
  bool read_header() {
    if (setjmp(png_jmpbuf(png))) return false;  // NOLINT(cert-err52-cpp)
    png_set_read_fn(png, &source, &read_bytes);
    png_set_user_limits(png, 0x7fffffff, 0x7fffffff);  // no limit here: require_image_size() checks the size, with a better message
    png_set_chunk_malloc_max(png, kMostChunk);
    png_set_crc_action(png, PNG_CRC_ERROR_QUIT, PNG_CRC_WARN_DISCARD);
    png_read_info(png, info);
    height = png_get_image_height(png, info), width = png_get_image_width(png, info);
    return true;
  }
  bool prepare() {
    if (setjmp(png_jmpbuf(png))) return false;  // NOLINT(cert-err52-cpp)
    png_set_strip_16(png);
    png_set_expand(png);
    png_set_strip_alpha(png);
    png_set_gray_to_rgb(png);
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    return true;
  }
  bool read_pixels() {
    if (setjmp(png_jmpbuf(png))) return false;  // NOLINT(cert-err52-cpp)
    png_read_image(png, rows.data());
    png_read_end(png, info);
    return true;
  }
};

}  // namespace

DecodedImage read_png(const FileBytes& file) {
  Decoder decoder(file);
  const auto require_done = [&](bool done) {
    if (!done) fail(ErrorCode::format, file.name(), ": the PNG image is damaged: ", decoder.source.error);
  };
  decoder.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &decoder.source, &on_error, [](png_structp, png_const_charp) {});
  if (decoder.png != nullptr) decoder.info = png_create_info_struct(decoder.png);
  if (decoder.info == nullptr) throw std::bad_alloc();
  require_done(decoder.read_header());
  require_image_size(file, decoder.height, decoder.width, kMostPixelsPerByte);
  require_done(decoder.prepare());
  const std::int64_t height = decoder.height, width = decoder.width;
  if (static_cast<std::int64_t>(png_get_rowbytes(decoder.png, decoder.info)) != 3 * width)
    fail(ErrorCode::unsupported, file.name(), ": the PNG image has ", int{png_get_channels(decoder.png, decoder.info)}, " channels of ", int{png_get_bit_depth(decoder.png, decoder.info)}, " bits, which are not read");
  decoder.image.pixels = Tensor(DType::u8, {height, width, 3});
  for (std::int64_t row = 0; row < height; ++row) decoder.rows.push_back(decoder.image.pixels.data<std::uint8_t>() + row * width * 3);
  require_done(decoder.read_pixels());
  png_bytep exif = nullptr;
  png_uint_32 count = 0;
  if (png_get_eXIf_1(decoder.png, decoder.info, &count, &exif) != 0) decoder.image.orientation = exif_orientation({reinterpret_cast<const std::byte*>(exif), count});
  return std::move(decoder.image);
}

}  // namespace polyhead::io
