// `polyhead trace --story`: small computations with chosen numbers, each of which answers one question that tutorials leave open. They need no files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "json.h"

namespace polyhead::app {

// Prints the story `name`. UsageError that lists the known names if `name` is not one of them. seed: for stories that draw random numbers; UsageError for others.
void tell_story(const std::string& name, std::optional<std::uint64_t> seed, bool json);

// The stories with one sentence each, for `polyhead trace --list`.
std::string story_list(std::size_t width);
Json story_list_json();

}  // namespace polyhead::app
