#include "parser.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <utility>

#include "command.h"
#include "core/text.h"
#include "suggest.h"

namespace polyhead::app {
namespace {

// Rewords an error of CLI11 as one sentence in the style of this program.
std::string sentence(const CLI::ParseError& error, const CLI::App& parser, const std::vector<Option*>& options) {
  for (const std::string& extra : parser.remaining()) {
    if (extra.size() < 2 || extra[0] != '-' || extra == "--") continue;
    const std::string name = extra.substr(0, extra.find('='));
    std::vector<std::string> names;
    for (const Option* option : options) std::ranges::copy(option->names(), std::back_inserter(names));
    const std::string near = closest(name, names);
    return cat("unknown option '", name, "'", near.empty() ? "" : cat("; did you mean '", near, "'?"));
  }
  for (const std::string& extra : parser.remaining()) {
    if (extra != "--") return cat("unexpected argument '", extra, "'");
  }
  const std::string message = error.what();
  const std::string subject = message.substr(0, message.find(':'));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) {
    if (message.find("missing") != std::string::npos || message.find("At least") != std::string::npos)
      return cat(subject, " needs a value");
    if (message.find("At Most") != std::string::npos) return cat(subject, " is given more than once");
  }
  if (const std::size_t equals = message.find(" = "); dynamic_cast<const CLI::ConversionError*>(&error) && equals != std::string::npos) {
    const std::size_t name = message.rfind(' ', equals - 1) + 1;  // the message is such as "Could not convert: --json = maybe"
    return cat(message.substr(name, equals - name), ": '", message.substr(equals + 3), "' is neither true nor false");
  }
  if (dynamic_cast<const CLI::ExcludesError*>(&error)) {
    std::string text = message;
    return text.replace(text.find(" excludes "), 10, " cannot be combined with ");
  }
  return message;
}

// Refuses empty values of file options, so that `-o "$UNSET"` does not act like a missing -o. A text, a prefix and the shape of a scalar may be empty.
void refuse_empty_names(const std::vector<Option*>& options) {
  for (const Option* option : options) {
    const std::string type = option->type();
    const bool is_name = option->is_positional() || type == "FILE" || type == "FOLDER" || type == "PATH" || type == "NAME";
    if (is_name && std::ranges::count(option->words(), "") > 0) throw UsageError(cat(option->name(), " is empty"));
  }
}

// CLI11 reads any number, "+" and "-" as the value of a flag: --json=-5 would mean off.
void refuse_flags_of_numbers(const std::vector<Option*>& options) {
  constexpr std::array<std::string_view, 6> kTruths{"true", "false", "on", "off", "yes", "no"};
  for (const Option* option : options) {
    if (!option->type().empty() || option->is_positional()) continue;
    for (const std::string& word : option->words()) {
      if (std::ranges::find(kTruths, word) == kTruths.end()) throw UsageError(cat(option->name(), ": '", word, "' is neither true nor false"));
    }
  }
}

}  // namespace

Option* Option::type_name(const std::string& name) { return option_->type_name(name), this; }
Option* Option::required() { return option_->required(), this; }
Option* Option::value_is_optional() { return option_->expected(0, 1), this; }
Option* Option::needs(Option* other) { return option_->needs(other->option_), this; }
Option* Option::excludes(Option* other) { return option_->excludes(other->option_), this; }

std::string Option::name() const { return option_->get_name(option_->get_positional()); }

std::vector<std::string> Option::names() const {
  std::vector<std::string> names;
  for (const std::string& name : option_->get_snames()) names.push_back("-" + name);
  for (const std::string& name : option_->get_lnames()) names.push_back("--" + name);
  return names;
}

std::string Option::type() const { return option_->get_type_size() != 0 ? option_->get_type_name() : ""; }
std::string Option::description() const { return option_->get_description(); }
bool Option::is_positional() const { return option_->get_positional(); }
bool Option::is_required() const { return option_->get_required(); }
bool Option::is_given() const { return option_->count() > 0; }
std::vector<std::string> Option::words() const { return option_->results(); }

struct Parser::Implementation {
  CLI::App app;
};

Parser::Parser(const std::string& name, const std::string& summary)
    : implementation_(new Implementation{CLI::App(summary, name)}), help_(keep(implementation_->app.set_help_flag("-h,--help", "show this text"))) {}
Parser::~Parser() = default;

Option* Parser::keep(CLI::Option* option) { return options_.emplace_back(std::make_unique<Option>(option)).get(); }

Option* Parser::add_option(const std::string& names, std::string& target, const std::string& description) {
  return keep(implementation_->app.add_option(names, target, description));
}

Option* Parser::add_option(const std::string& names, std::function<void(const std::string&)> take, const std::string& description) {
  return keep(implementation_->app.add_option_function<std::string>(names, take, description));
}

Option* Parser::add_option(const std::string& names, std::vector<std::string>& target, const std::string& description) {
  const auto take = [&target](const CLI::results_t& words) {
    target = words;
    return true;
  };
  return keep(implementation_->app.add_option(names, take, description)->type_size(1)->expected(1)->take_all());
}

Option* Parser::add_flag(const std::string& names, bool& target, const std::string& description) {
  return keep(implementation_->app.add_flag(names, target, description));
}

void Parser::remove(Option* option) {
  implementation_->app.remove_option(option->option_);
  std::erase_if(options_, [&](const auto& one) { return one.get() == option; });
}

Option* Parser::find(const std::string& name) const {
  const CLI::Option* const found = implementation_->app.get_option(name);
  return std::ranges::find(options_, found, [](const auto& one) { return one->option_; })->get();
}

std::vector<Option*> Parser::options() const {
  std::vector<Option*> options;
  for (const auto& one : options_) options.push_back(one.get());
  return options;
}

std::string Parser::name() const { return implementation_->app.get_name(); }
std::string Parser::summary() const { return implementation_->app.get_description(); }

bool Parser::parse(std::vector<std::string> arguments) {
  CLI::App& app = implementation_->app;
  try {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 reads this vector from its end
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    return false;
  } catch (const CLI::ParseError& error) {
    const std::string text = sentence(error, app, options());
    throw UsageError(cat(text, text.ends_with('?') ? " " : "; ", "see '", name(), " --help'"));
  }
  refuse_empty_names(options());
  refuse_flags_of_numbers(options());
  return true;
}

}  // namespace polyhead::app
