// "Did you mean": one measure for subcommands, options and every name that a user types.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace polyhead::app {

// Insertions, deletions, replacements and swaps of neighbours that lead from a to b (Damerau 1964, restricted: no part is edited twice).
std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate that `word` most likely stands for: one that it begins, else the nearest within a third of its length. Empty: none is near.
std::string closest(std::string_view word, std::span<const std::string> candidates);

// "'wrod' is not a FRUIT; did you mean 'word'?" or, where nothing is near, "'x' is not a FRUIT; there is: a, b, c".
std::string unknown_name(std::string_view word, std::string_view what, std::span<const std::string> candidates);

}  // namespace polyhead::app
