// Which known name a mistyped or unknown one is most like, for messages.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <vector>

namespace polyhead::models {

// Levenshtein's distance.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t corner = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = corner + (a[i] != b[j]);
      corner = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, corner + 1});
    }
  }
  return row.back();
}

// The name f(item) of the list, which is not empty.
template <class List, class F>
std::string_view nearest_name(const List& list, F&& f, std::string_view word) {
  return std::invoke(f, *std::ranges::min_element(list, {}, [&](const auto& item) { return edit_distance(std::invoke(f, item), word); }));
}

}  // namespace polyhead::models
