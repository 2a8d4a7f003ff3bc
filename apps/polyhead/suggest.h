// "Did you mean ...?" for subcommands, options and every other name that a user types.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace polyhead::app {

// The candidate that the user probably meant: one that starts with `word`, else the one with the smallest edit distance. "" if
// that distance is more than about a third of the word's length.
std::string closest(std::string_view word, std::span<const std::string> candidates);

// "'wrod' is not a WHAT; did you mean 'word'?", or "'x' is not a WHAT; choose from a, b, c" if no candidate is near.
std::string unknown_name(std::string_view word, std::string_view what, std::span<const std::string> candidates);

}  // namespace polyhead::app
