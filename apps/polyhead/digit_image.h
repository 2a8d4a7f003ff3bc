// Makes the image that a model of digits reads from a PNG or JPEG image, such as a drawing or a photograph of a digit on paper.
#pragma once

#include <filesystem>
#include <string>

#include "polyhead/tensor.h"

namespace polyhead::app {

// Whether the file is a PNG or JPEG image, by its first bytes.
bool is_image_file(const std::filesystem::path& path);

// An image [H,W,3] uint8 of a digit as [height,width] float32 with pixels from 0 (ground) to `white` (ink), as in scikit-learn's digits: the ink alone, in its
// smallest square, scaled by the mean over each pixel's area. The ground is the median of the border's pixels; ink is darker than a light ground, and lighter
// than a dark one. An image of height x width pixels is not cut out or scaled. Error (unsupported) that begins with `name` if no pixel differs from the
// ground by a tenth of the range from black to white.
Tensor digit_of_image(ConstTensorView image, std::int64_t height, std::int64_t width, double white, const std::string& name);

}  // namespace polyhead::app
