// Turns an image into the input of an image model: resizes, crops, rescales and normalises it, as transformers' image processors with Pillow do.
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

// The steps of preprocessor_config.json, in the order in which they are applied. A comment that is a single name is the key in that file.
struct ImageProcessor {
  struct Size {
    std::int64_t height = 0, width = 0;
  };
  std::optional<Size> resize{};                  // key `size` with height and width. Give this or shortest_edge; if do_resize is false, give neither.
  std::optional<std::int64_t> shortest_edge{};   // key `size` with the shorter side in pixels; the longer side follows in proportion
  Resampling resampling = Resampling::bilinear;  // resample
  std::optional<Size> crop{};                    // crop_size, with do_center_crop: the size of the part in the middle of the image that is kept
  bool crop_half_even = false;                   // If the crop's offset ends in 1/2: true rounds it to the even neighbour (torchvision), false rounds it down.
  std::optional<double> factor{};                // rescale_factor; with do_rescale
  bool normalise = true;                         // do_normalize
  std::array<double, 3> mean{}, deviation{1, 1, 1};  // image_mean, image_std
};

// Reads preprocessor_config.json of a folder, or config.json of timm. Error if a key is unknown, or if a value is missing or not supported.
ImageProcessor read_image_processor(const std::filesystem::path& folder);

// Resizes an image [height,width,3] uint8 to [height',width',3] uint8. The result equals that of Pillow 13 bit for bit. Each new pixel is a filtered mean of
// all source pixels that it covers.
Tensor resized(ConstTensorView image, ImageProcessor::Size size, Resampling resampling);
// Resizes and crops an image [height,width,3] uint8 to the size that the model reads. Error if the crop is larger than the image.
Tensor fitted(const ImageProcessor& processor, ConstTensorView image);
// Returns the input of VisionEncoder::forward() for an image of the model's size: pixels [3,height,width] float32.
Tensor normalised(const ImageProcessor& processor, ConstTensorView fitted);

}  // namespace polyhead::models
#pragma GCC visibility pop
