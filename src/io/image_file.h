// The decoders of image files.
#pragma once

#include "io/file_bytes.h"
#include "polyhead/tensor.h"

namespace polyhead::io {

// What a file holds, before its orientation is applied.
struct DecodedImage {
  Tensor pixels;        // [height,width,3] uint8
  int orientation = 1;  // of EXIF, 1 to 8
};

DecodedImage read_png(const FileBytes& file);
DecodedImage read_jpeg(const FileBytes& file);

// Error for a size that is not allowed, or that needs more bytes than `most_per_byte` of each byte of the file. Before memory is allocated.
void require_image_size(const FileBytes& file, std::int64_t height, std::int64_t width, std::int64_t most_per_byte);
// The tag Orientation of EXIF data, which begin with the header of TIFF; 1 where there is none, or it makes no sense.
int exif_orientation(std::span<const std::byte> tiff);

}  // namespace polyhead::io
