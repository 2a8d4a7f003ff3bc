// The families of models that open from a folder as the `transformers` package writes it, and those that are refused.
#pragma once

#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace polyhead::models {

struct ModelFamily {
  std::string_view kind;        // "encoder", "decoder", "two sides", "images" or "images and texts"
  std::string_view model_type;  // the value of "model_type" in config.json
  std::string_view refused{};   // why a model of this family does not open; empty: it opens
};

// Returns all families; families of the same kind follow each other.
std::vector<ModelFamily> model_families();

}  // namespace polyhead::models
#pragma GCC visibility pop
