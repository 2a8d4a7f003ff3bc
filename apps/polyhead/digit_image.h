// Makes the image that a model of digits reads from a PNG or JPEG image, such as a drawing or a photograph of a digit on paper.
#pragma once

#include <string>

#include "polyhead/tensor.h"

namespace polyhead::app {

// Converts an image of a digit, [H,W,3] uint8, to [height,width] float32 as in scikit-learn's digits: pixels of the background are 0, pixels of ink are at most `white`.
// The smallest square around the ink is cut out and scaled; a pixel of the result is the mean over its area. An image that has height x width pixels already is
// neither cut out nor scaled. The background is the median of the pixels at the border. If it is light, darker pixels are ink; if it is dark, lighter pixels are ink.
// Error (unsupported), which begins with `name`, if all pixels differ from the background by less than a tenth of the range from black to white.
Tensor digit_of_image(ConstTensorView image, std::int64_t height, std::int64_t width, double white, const std::string& name);

}  // namespace polyhead::app
