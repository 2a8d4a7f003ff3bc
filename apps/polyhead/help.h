// --help: what it is for, examples, usage, then every argument and option.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "command.h"

namespace polyhead::app {

// Of one subcommand; lines of at most `width` columns (a word that is longer stays whole).
std::string help_text(const CLI::App& parser, const Subcommand& subcommand, std::size_t width);

// Of the program. The short form is what a call without arguments gets.
std::string overview(std::span<const Command> commands, std::size_t width, bool brief);

}  // namespace polyhead::app
