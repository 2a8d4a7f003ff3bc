// What a subcommand is: options, and what happens once they are read. main.cc holds the table of them.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "usage_error.h"

namespace polyhead::app {

struct Example {
  std::string command;
  std::string meaning;
};

struct Subcommand {
  std::vector<Example> examples;  // what --help shows first
  std::string notes;              // what --help shows last; paragraphs end with a newline
  std::function<void()> run;
};

// A row of the table.
struct Command {
  std::string_view name;
  std::string_view summary;
  Subcommand (*declare)(CLI::App&);  // gives the parser its options; what they fill lives as long as the result's `run`
};

}  // namespace polyhead::app
