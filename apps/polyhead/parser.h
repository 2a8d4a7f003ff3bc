// Parses the arguments of a subcommand. Only parser.cc includes CLI11, because the compilation of CLI11's header takes 10 s.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class Option;
}

namespace polyhead::app {

// An option such as -o, --output, or a positional argument. The Parser owns the object.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option(const Option&) = delete;
  Option& operator=(const Option&) = delete;

  // These setters return the option itself.
  Option* type_name(const std::string& name);  // what --help shows for the value
  Option* required();
  Option* value_is_optional();
  Option* needs(Option* other);
  Option* excludes(Option* other);

  std::string name() const;                // "--output" or "MODEL_DIR"
  std::vector<std::string> names() const;  // option names with their dashes, short names first; empty for a positional argument
  std::string type() const;                // name of the value's type in --help; "" for a flag, which has no value
  std::string description() const;
  bool is_positional() const;
  bool is_required() const;
  bool is_given() const;  // valid after parse()
  std::vector<std::string> words() const;

 private:
  friend class Parser;
  CLI::Option* option_;
};

class Parser {
 public:
  // name: the command, such as "polyhead view". summary: what it does, in one sentence. The constructor adds the option -h, --help.
  Parser(const std::string& name, const std::string& summary);
  ~Parser();
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;

  // `names`: "-o,--output", or "MODEL_DIR" for a positional argument. parse() writes the value to `target`, which must live until parse() returns.
  Option* add_option(const std::string& names, std::string& target, const std::string& description);
  Option* add_option(const std::string& names, std::function<void(const std::string&)> take, const std::string& description);
  // Adds an option that may be given several times, with one word each time.
  Option* add_option(const std::string& names, std::vector<std::string>& target, const std::string& description);
  Option* add_flag(const std::string& names, bool& target, const std::string& description);
  void remove(Option* option);

  Option* find(const std::string& name) const;  // throws an exception if there is no option of this name
  std::vector<Option*> options() const;         // all options, in the order in which they were added
  Option* help_option() const { return help_; }
  std::string name() const;
  std::string summary() const;

  // False if --help is among the arguments. UsageError for wrong arguments.
  bool parse(std::vector<std::string> arguments);

 private:
  struct Implementation;
  Option* keep(CLI::Option* option);

  std::unique_ptr<Implementation> implementation_;
  std::vector<std::unique_ptr<Option>> options_;
  Option* help_;
};

}  // namespace polyhead::app
