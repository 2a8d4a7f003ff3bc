// The decoders of image files.
#pragma once

#include "io/file_bytes.h"
#include "polyhead/tensor.h"

namespace polyhead::io {

// The contents of an image file, before its orientation is applied.
struct DecodedImage {
  Tensor pixels;        // [height,width,3] uint8
  int orientation = 1;  // EXIF orientation, 1 to 8
};

DecodedImage read_png(const FileBytes& file);
DecodedImage read_jpeg(const FileBytes& file);

// Error if the size is not allowed, or if the file claims more than `most_per_byte` pixels for each of its bytes. Call it before memory is allocated.
void require_image_size(const FileBytes& file, std::int64_t height, std::int64_t width, std::int64_t most_per_byte);
// Returns the tag Orientation of EXIF data, which begin with a TIFF header; 1 if the tag is missing or invalid.
int exif_orientation(std::span<const std::byte> tiff);

}  // namespace polyhead::io
