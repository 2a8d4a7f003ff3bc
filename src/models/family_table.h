// Functions on the tables of model families, whose rows have a model_type.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <string_view>
#include <vector>

#include "core/edit_distance.h"

namespace polyhead::models {

// Returns the model_type of all rows of the tables.
template <class... Tables>
std::vector<std::string_view> model_types(const Tables&... tables) {
  std::vector<std::string_view> names;
  (std::ranges::transform(tables, std::back_inserter(names), [](const auto& row) { return row.model_type; }), ...);
  return names;
}

// Returns the row with this model_type; nullptr if there is none.
template <class Table>
auto* find_row(const Table& table, std::string_view model_type) {
  const auto found = std::ranges::find_if(table, [&](const auto& row) { return row.model_type == model_type; });
  return found == std::ranges::end(table) ? nullptr : &*found;
}

// Returns the name f(item) that is nearest to `word`, for messages about a mistyped or unknown name. The list may not be empty.
template <class List, class F>
std::string_view nearest_name(const List& list, F&& f, std::string_view word) {
  return std::invoke(f, *std::ranges::min_element(list, {}, [&](const auto& item) { return edit_distance(std::invoke(f, item), word); }));
}

}  // namespace polyhead::models
