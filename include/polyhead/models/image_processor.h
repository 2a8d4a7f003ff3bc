// Turns an image into the pixels that an image model was trained with, as transformers' image processors with Pillow do: resize, crop, rescale, normalise.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

enum class Resampling : std::uint8_t { lanczos, bilinear, bicubic, box, hamming };

// The comments name the keys of preprocessor_config.json.
struct ImageProcessor {
  struct Size {
    std::int64_t height = 0, width = 0;
  };
  std::optional<Size> resize{};                  // key `size` with height and width. Give this or shortest_edge; give neither with do_resize = false
  std::optional<std::int64_t> shortest_edge{};   // key `size` with the shorter side; the longer side follows in proportion
  Resampling resampling = Resampling::bilinear;  // resample
  std::optional<Size> crop{};                    // crop_size, with do_center_crop: size of the part in the middle of the image that is kept
  bool crop_half_even = false;                   // an offset of the crop that ends in 1/2 is rounded to even (torchvision), not down
  std::optional<double> factor{};                // rescale_factor; with do_rescale
  bool normalise = true;                         // do_normalize
  std::array<double, 3> mean{}, deviation{1, 1, 1};  // image_mean, image_std
};

// Reads preprocessor_config.json of a folder, or config.json of timm. An unknown key, or a value that is missing or not supported, is an Error.
ImageProcessor read_image_processor(const std::filesystem::path& folder);

// Resizes an image [height,width,3] uint8 to [height',width',3] uint8, bit for bit as Pillow 13: a target pixel is a filtered mean of all source pixels that
// it covers.
Tensor resized(ConstTensorView image, ImageProcessor::Size size, Resampling resampling);
// Returns the part of an image [height,width,3] uint8 that the model reads, in the model's size: resized and cropped. Error if a crop is larger than the image.
Tensor fitted(const ImageProcessor& processor, ConstTensorView image);
// Returns the pixels [3,height,width] float32 of a fitted image, for VisionEncoder::forward.
Tensor normalised(const ImageProcessor& processor, ConstTensorView fitted);

}  // namespace polyhead::models
#pragma GCC visibility pop
