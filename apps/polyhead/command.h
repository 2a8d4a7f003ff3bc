// A subcommand: its options, its help and the function that runs it. The table of all subcommands is in program.cc.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead::app {

class Option;
class Parser;

// Thrown for wrong arguments; the exit status is then 2. A polyhead::Error means that the operation failed; the exit status is then 1.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Example {
  std::string command;
  std::string meaning;
};

struct Subcommand {
  std::vector<Example> examples;  // examples, which --help shows first
  std::string notes;              // paragraphs, which --help shows last; each ends with a newline
  std::function<void()> run;
};

struct Command {
  std::string_view name;
  std::string_view summary;
  // Adds the subcommand's options to the parser. The options write their values to memory that `run` of the result owns.
  Subcommand (*declare)(Parser&);
};

}  // namespace polyhead::app
