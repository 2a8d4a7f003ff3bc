// Reads images from PNG and JPEG files, through libpng and libjpeg-turbo. If polyhead is built without these libraries (POLYHEAD_IMAGES=OFF), read_image()
// throws an Error that says so.
#pragma once

#include <filesystem>

#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead::io {

// Returns the pixels of a PNG or JPEG file, which is recognised by its contents: [height,width,3] uint8, red, green and blue. They equal those of Pillow's
// `convert("RGB")`: grey is repeated, an alpha channel is dropped, and 16-bit samples keep their upper 8 bits. Colour profiles and gamma are not applied. The
// image is turned upright as the orientation in the file's EXIF data says.
// Error: ErrorCode::io when the file cannot be read; ErrorCode::format when it is cut off or damaged, has more than 2^26 pixels or a side above 2^16, or claims
// more pixels than its bytes can hold; ErrorCode::unsupported for CMYK, and for a file of another kind, which the message names if it is known.
Tensor read_image(const std::filesystem::path& path);

// Returns whether the file begins like a PNG or JPEG image; false if the file cannot be read.
bool is_image(const std::filesystem::path& path);

}  // namespace polyhead::io
#pragma GCC visibility pop
