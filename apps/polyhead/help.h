// The texts of --help: purpose, examples, usage, then every argument and option.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "command.h"

namespace polyhead::app {

// Help of one subcommand in lines of at most `width` columns. A word longer than `width` is not broken.
std::string help_text(const Parser& parser, const Subcommand& subcommand, std::size_t width);

// Help of the program. `brief`: the short form, for a call without arguments.
std::string overview(std::span<const Command> commands, std::size_t width, bool brief);

}  // namespace polyhead::app
