#include <cstdio>

#include <csetjmp>
#include <string>
#include <string_view>

#include <jpeglib.h>
#include <jerror.h>

#include "core/text.h"
#include "io/image_file.h"

namespace polyhead::io {
namespace {

// Upper bound of the pixels per byte of a JPEG file. An entropy-coded block of 64 pixels takes at least two bits, one for DC and one for AC; colours may be
// stored for a quarter of the pixels; and one code of a progressive file may skip up to 2^15 blocks.
constexpr std::int64_t kMostPixelsPerByte = 64 << 15;
constexpr int kMostScans = 100;  // a progressive file of many scans would take hours; encoders write about 10

struct Decoder {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf jump{};
  char message[JMSG_LENGTH_MAX] = {};
  bool cmyk = false;
  JSAMPROW first_row = nullptr;
  std::size_t row_bytes = 0;

  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() { jpeg_destroy_decompress(&info); }

  static Decoder& of(j_common_ptr any) { return *static_cast<Decoder*>(any->client_data); }
  [[noreturn]] static void on_error(j_common_ptr any) {
    Decoder& decoder = of(any);
    (*any->err->format_message)(any, decoder.message);
    std::longjmp(decoder.jump, 1);  // NOLINT(cert-err52-cpp)
  }
  // Turns a warning about damaged data into an error, because the decoder would replace the damaged pixels by grey. Other warnings, such as bytes between
  // segments, do not change pixels.
  static void on_message(j_common_ptr any, int level) {
    if (level >= 0) return;
    const int code = any->err->msg_code;
    if (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE || code == JWRN_MUST_RESYNC || code == JWRN_BOGUS_PROGRESSION || code == JWRN_ARITH_BAD_CODE) on_error(any);
  }
  static void on_progress(j_common_ptr any) {
    if (!any->is_decompressor || reinterpret_cast<j_decompress_ptr>(any)->input_scan_number <= kMostScans) return;
    Decoder& decoder = of(any);
    std::snprintf(decoder.message, sizeof decoder.message, "it has more than %d scans", kMostScans);
    std::longjmp(decoder.jump, 1);  // NOLINT(cert-err52-cpp)
  }

  // The functions with setjmp return false after an error. They have no objects with destructors, which libjpeg's longjmp would skip.
  bool read_header(const FileBytes& file) {
    info.err = jpeg_std_error(&errors);
    info.client_data = this;
    errors.error_exit = &on_error;
    errors.emit_message = &on_message;
    errors.output_message = [](j_common_ptr) {};
    if (setjmp(jump)) return false;  // NOLINT(cert-err52-cpp)
    jpeg_create_decompress(&info);
    info.client_data = this;
    jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.bytes.data()), file.bytes.size());
    jpeg_save_markers(&info, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&info, TRUE);
    cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
    return true;
  }
  bool read_pixels() {
    if (setjmp(jump)) return false;  // NOLINT(cert-err52-cpp)
    progress.progress_monitor = &on_progress;
    info.progress = &progress;
    info.out_color_space = JCS_RGB;
    jpeg_start_decompress(&info);
    while (info.output_scanline < info.output_height) {
      JSAMPROW row = first_row + info.output_scanline * row_bytes;
      jpeg_read_scanlines(&info, &row, 1);
    }
    jpeg_finish_decompress(&info);
    return true;
  }
};

int orientation_of(jpeg_saved_marker_ptr marker) {
  constexpr std::string_view kExif("Exif\0\0", 6);
  for (; marker != nullptr; marker = marker->next) {
    const std::span bytes(reinterpret_cast<const std::byte*>(marker->data), marker->data_length);
    if (std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()).starts_with(kExif)) return exif_orientation(bytes.subspan(kExif.size()));
  }
  return 1;
}

}  // namespace

DecodedImage read_jpeg(const FileBytes& file) {
  Decoder decoder;
  const auto require_done = [&](bool done) {
    if (!done) fail(ErrorCode::format, file.name(), ": the JPEG image is damaged: ", std::string_view(decoder.message));
  };
  require_done(decoder.read_header(file));
  const std::int64_t height = decoder.info.image_height, width = decoder.info.image_width;
  require_image_size(file, height, width, kMostPixelsPerByte);
  if (decoder.cmyk) fail(ErrorCode::unsupported, file.name(), ": the JPEG image has the colours of print (CMYK), which are not read; save it as RGB");
  DecodedImage image{.pixels = Tensor(DType::u8, {height, width, 3}), .orientation = orientation_of(decoder.info.marker_list)};
  decoder.first_row = image.pixels.data<std::uint8_t>(), decoder.row_bytes = static_cast<std::size_t>(width) * 3;
  require_done(decoder.read_pixels());
  return image;
}

}  // namespace polyhead::io
