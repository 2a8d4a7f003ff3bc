// Images from files: PNG and JPEG, through libpng and libjpeg-turbo. Built without them (POLYHEAD_IMAGES=OFF), read_image() is an Error that says so.
#pragma once

#include <filesystem>

#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead::io {

// The pixels of a PNG or JPEG file, recognised by its contents: [height,width,3] uint8, red, green and blue, as Pillow's `convert("RGB")` gives them:
// grey is repeated, an alpha channel is dropped, and 16-bit samples keep their upper 8 bits. Colour profiles and gamma are not applied. The image is
// turned upright as the file's EXIF data say.
// Error: ErrorCode::io when the file cannot be read; ErrorCode::format when it is cut off or damaged, has more than 2^26 pixels or a side above 2^16, or claims
// more pixels than its bytes can hold; ErrorCode::unsupported for CMYK, and for another kind of file, which is named if it is known.
Tensor read_image(const std::filesystem::path& path);

// Whether the file begins like a PNG or JPEG image. False for a file that cannot be read.
bool is_image(const std::filesystem::path& path);

}  // namespace polyhead::io
#pragma GCC visibility pop
