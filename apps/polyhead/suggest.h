// "Did you mean ...?" for subcommands, options and every other name that a user types.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace polyhead::app {

// The candidate that the user probably meant: a candidate that starts with `word`, else the candidate with the smallest edit distance. "" if the
// smallest distance is more than about a third of the length of `word`.
std::string closest(std::string_view word, std::span<const std::string> candidates);

// "'wrod' is not a WHAT; did you mean 'word'?", or "'x' is not a WHAT; choose from a, b, c" if no candidate is near.
std::string unknown_name(std::string_view word, std::string_view what, std::span<const std::string> candidates);

}  // namespace polyhead::app
