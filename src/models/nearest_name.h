// Finds the known name that is most like a mistyped or unknown one, for messages.
#pragma once

#include <algorithm>
#include <functional>
#include <string_view>

#include "core/edit_distance.h"

namespace polyhead::models {

// Returns the name f(item) that is nearest to `word`. The list may not be empty.
template <class List, class F>
std::string_view nearest_name(const List& list, F&& f, std::string_view word) {
  return std::invoke(f, *std::ranges::min_element(list, {}, [&](const auto& item) { return edit_distance(std::invoke(f, item), word); }));
}

}  // namespace polyhead::models
