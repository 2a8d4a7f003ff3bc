// Functions that format lists for messages and help texts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/text.h"

namespace polyhead {

// Returns "a, b, c": f(item) for every item, with a separator between them. If there are more than `limit` items, the text ends with " and 3 more".
template <class List, class F = std::identity>
std::string join(List&& list, F&& f = {}, std::string_view separator = ", ", std::size_t limit = SIZE_MAX) {
  std::string text;
  std::size_t count = 0;
  for (const auto& item : list) {
    if (++count <= limit) append(text, cat(count > 1 ? separator : "", std::invoke(f, item)));
  }
  return count > limit ? cat(text, " and ", count - limit, " more") : text;
}

// Returns the items for which `wanted` is true. views::filter of the standard library would do this, but Clang 14 does not compile it.
template <class List, class F>
auto filtered(const List& list, F&& wanted) {
  std::vector<std::remove_const_t<typename List::value_type>> items;
  std::ranges::copy_if(list, std::back_inserter(items), wanted);
  return items;
}

}  // namespace polyhead
