// Canonical ordering and composition of decomposed characters (Unicode 15, section 3.11). The functions are templates on the type of a character; class_of(c)
// returns its combining class.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace polyhead::models {

// Sorts consecutive marks by their combining classes, stably.
template <class C, class F>
void order_marks(std::vector<C>& chars, const F& class_of) {
  const auto is_starter = [&](const C& c) { return class_of(c) == 0; };
  for (auto first = chars.begin(); first != chars.end();) {
    first = std::find_if_not(first, chars.end(), is_starter);
    const auto last = std::find_if(first, chars.end(), is_starter);
    std::stable_sort(first, last, [&](const C& a, const C& b) { return class_of(a) < class_of(b); });
    first = last;
  }
}

// Composes in place. compose(first, c) puts the composition of both into `first` and returns true, or returns false if there is none. Definitions D115 and D117: a
// character composes with the last starter unless a character of the same or a higher class lies between.
template <class C, class F, class G>
void compose_marks(std::vector<C>& chars, const F& class_of, const G& compose) {
  std::size_t kept = 0, starter = 0;
  bool has_starter = false;
  for (const C c : chars) {
    const int own_class = class_of(c);
    const bool adjacent = has_starter && starter + 1 == kept;
    const bool blocked = !adjacent && (kept == 0 || class_of(chars[kept - 1]) >= own_class);
    if (has_starter && !blocked && compose(chars[starter], c)) continue;
    if (own_class == 0) {
      starter = kept;
      has_starter = true;
    }
    chars[kept++] = c;
  }
  chars.resize(kept);
}

}  // namespace polyhead::models
