// Trained models that are part of the library (models/default in the repository):
//   const auto model = load_text_model(default_model("sentiment"));
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace polyhead::models {

// Returns the names of the trained models in the library, in alphabetical order.
std::vector<std::string> default_models();

// Returns the path "polyhead:NAME" of a trained model inside the library. All functions that load trained models accept this path. Error if there is no such
// model.
std::filesystem::path default_model(std::string_view name);

}  // namespace polyhead::models
#pragma GCC visibility pop
