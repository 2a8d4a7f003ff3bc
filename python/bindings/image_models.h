#pragma once

#include <nanobind/nanobind.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace polyhead::python {

struct LoadedImageModel {
  std::string kind;  // of _KINDS in polyhead/models
  nanobind::object model;
  nanobind::dict config;
};
// nullopt if the folder's config.json is not that of a model of images.
std::optional<LoadedImageModel> load_image_model(const std::filesystem::path& folder);

}  // namespace polyhead::python
