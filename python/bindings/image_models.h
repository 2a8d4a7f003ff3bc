#pragma once

#include <nanobind/nanobind.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace polyhead::python {

struct LoadedImageModel {
  std::string kind;  // a key of _KINDS in polyhead/models/__init__.py
  nanobind::object model;
  nanobind::dict config;
};
// Loads a model of images. Returns nullopt if the folder's config.json describes another kind of model.
std::optional<LoadedImageModel> load_image_model(const std::filesystem::path& folder);

}  // namespace polyhead::python
