// Lists the families of models that polyhead knows: those that it opens from a folder that the `transformers` package wrote, and those that it refuses.
#pragma once

#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace polyhead::models {

struct ModelFamily {
  std::string_view kind;        // the kind of the family: "encoder", "decoder", "two sides", "images" or "images and texts"
  std::string_view model_type;  // the value of "model_type" in config.json
  std::string_view refused{};   // why polyhead refuses models of this family; empty: it opens them
};

// Returns all families. Families of the same kind are next to each other.
std::vector<ModelFamily> model_families();

}  // namespace polyhead::models
#pragma GCC visibility pop
