// Trained models that are part of the library (models/default in the repository):
//   const auto model = load_text_model(default_model("sentiment"));
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace polyhead::models {

// Their names, in the order of the alphabet.
std::vector<std::string> default_models();

// A folder inside the library, "polyhead:NAME", which the functions that load a trained model open. Error if there is none of this name.
std::filesystem::path default_model(std::string_view name);

}  // namespace polyhead::models
#pragma GCC visibility pop
