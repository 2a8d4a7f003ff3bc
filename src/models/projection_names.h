// The names of the projections of a layer in a family's files.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "core/text.h"

namespace polyhead::models {

// Returns the names by projection. `tensors`: the names in the family's row of the table. If one tensor holds q, k and v, their names are "attn.c_attn q" and so on.
template <class Tensors>
std::map<std::string, std::string> projection_names(const Tensors& tensors) {
  const auto named = [&](std::string_view name, const char* part) { return tensors.k.empty() ? cat(tensors.q, " ", part) : std::string(name); };
  return {{"q", named(tensors.q, "q")}, {"k", named(tensors.k, "k")}, {"v", named(tensors.v, "v")}, {"output", std::string(tensors.attention_output)}};
}

}  // namespace polyhead::models
