// `polyhead view` for images. The patches of an image are the tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "polyhead/viewer.h"

namespace polyhead::app {

struct ImageView {
  std::string model;                // folder
  std::vector<std::string> images;  // paths
  std::optional<std::string> text;  // a text to show beside the images, for a model with encoders of images and of texts
  std::string page, arrays;         // empty: none is written
  std::optional<std::int64_t> layer, head;
  bool mean = false, json = false, by_norms = false;  // by_norms: norm-weighted maps
  std::optional<viewer::Language> language;
  double vector_megabytes = 0;
};

void view_images(const ImageView& given);

}  // namespace polyhead::app
