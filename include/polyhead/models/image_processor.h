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
  std::optional<Size> resize{};                  // size: height and width. This or shortest_edge, or none with do_resize = false
  std::optional<std::int64_t> shortest_edge{};   // size: the shorter side, the other in proportion
  Resampling resampling = Resampling::bilinear;  // resample
  std::optional<Size> crop{};                    // crop_size: the middle of the image; with do_center_crop
  bool crop_half_even = false;                   // half a pixel beside the crop is rounded to an even number (torchvision), not down
  std::optional<double> factor{};                // rescale_factor; with do_rescale
  bool normalise = true;                         // do_normalize
  std::array<double, 3> mean{}, deviation{1, 1, 1};  // image_mean, image_std
};

// preprocessor_config.json of a folder, or what timm's config.json says. Error that names the key where a value is missing or not supported, or that nothing reads.
ImageProcessor read_image_processor(const std::filesystem::path& folder);

// An image [height,width,3] uint8 -> [height',width',3] uint8, in the bits of Pillow 13: filtered over all pixels of the source that a target pixel covers.
Tensor resized(ConstTensorView image, ImageProcessor::Size size, Resampling resampling);
// The part of an image [height,width,3] uint8 that the model sees, in its size: resized and cropped. Error where a crop is larger than the image.
Tensor fitted(const ImageProcessor& processor, ConstTensorView image);
// The pixels [3,height,width] float32 for VisionEncoder::forward, of a fitted image.
Tensor normalised(const ImageProcessor& processor, ConstTensorView fitted);

}  // namespace polyhead::models
#pragma GCC visibility pop
