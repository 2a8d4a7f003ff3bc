#include <algorithm>
#include <array>
#include <csignal>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
#include "core/text.h"
#include "help.h"
#include "polyhead/version.h"
#include "suggest.h"
#include "terminal.h"

namespace polyhead::app {

Subcommand declare_view(CLI::App& parser);
Subcommand declare_trace(CLI::App& parser);
Subcommand declare_attend(CLI::App& parser);
Subcommand declare_inspect(CLI::App& parser);
Subcommand declare_devices(CLI::App& parser);
Subcommand declare_explain(CLI::App& parser);

namespace {

constexpr std::array kCommands{
    Command{"view", "show what every head of a sentence model attends to", declare_view},
    Command{"trace", "show a layer step by step, with the shape and meaning of each", declare_trace},
    Command{"attend", "run a layer, or attention alone, on tensors from a file", declare_attend},
    Command{"inspect", "list the tensors, metadata and attention layers of a file", declare_inspect},
    Command{"devices", "show the processor, its instruction sets and the backends", declare_devices},
    Command{"explain", "tell how an attention problem would be computed", declare_explain},
};

std::vector<std::string> option_names(const CLI::App& parser) {
  std::vector<std::string> names;
  for (const CLI::Option* option : parser.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

// The parser's complaint as one sentence of this program.
std::string sentence(const CLI::ParseError& error, const CLI::App& parser) {
  for (const std::string& extra : parser.remaining()) {
    if (extra.size() < 2 || extra[0] != '-') continue;
    const std::string name = extra.substr(0, extra.find('='));
    const std::string near = closest(name, option_names(parser));
    return cat("unknown option '", name, "'", near.empty() ? "" : cat("; did you mean '", near, "'?"));
  }
  for (const std::string& extra : parser.remaining()) return cat("unexpected argument '", extra, "'");
  const std::string message = error.what();
  const std::string subject = message.substr(0, message.find(':'));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) {
    if (message.find("missing") != std::string::npos || message.find("At least") != std::string::npos)
      return cat(subject, " needs a value");
    if (message.find("At Most") != std::string::npos) return cat(subject, " is given more than once");
  }
  if (dynamic_cast<const CLI::ExcludesError*>(&error)) {
    std::string text = message;
    return text.replace(text.find(" excludes "), 10, " does not go together with ");
  }
  return message;
}

void run_command(const Command& command, std::vector<std::string> arguments) {
  CLI::App parser{std::string(command.summary), cat("polyhead ", command.name)};
  parser.set_help_flag("-h,--help", "this text");
  const Subcommand subcommand = command.declare(parser);
  const std::string hint = cat("see 'polyhead ", command.name, " --help'");
  try {
    std::reverse(arguments.begin(), arguments.end());  // the parser takes them from the back
    parser.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    return print(help_text(parser, subcommand, terminal_width(Stream::out)));
  } catch (const CLI::ParseError& error) {
    const std::string text = sentence(error, parser);
    throw UsageError(cat(text, text.ends_with('?') ? " " : "; ", hint));
  }
  subcommand.run();
}

// Exit status.
int run(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    print(overview(kCommands, terminal_width(Stream::out), true));
    return 2;
  }
  const std::string& first = arguments[0];
  if (first == "--help" || first == "-h") {
    print(overview(kCommands, terminal_width(Stream::out), false));
    return 0;
  }
  if (first == "--version") {
    print("polyhead " POLYHEAD_VERSION "\n");
    return 0;
  }
  std::vector<std::string> names{"--help", "--version"};
  for (const Command& command : kCommands) {
    if (command.name == first) {
      run_command(command, {arguments.begin() + 1, arguments.end()});
      return 0;
    }
    names.emplace_back(command.name);
  }
  const std::string near = closest(first, names);
  throw UsageError(cat("unknown ", first.starts_with('-') ? "option" : "command", " '", first, "'",
                       near.empty() ? "; " : cat("; did you mean '", near, "'? "), "see 'polyhead --help'"));
}

int guarded(const std::vector<std::string>& arguments) {
  try {
    return run(arguments);
  } catch (const ClosedPipe&) {
    return 0;
  } catch (const UsageError& error) {
    complain(error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    complain("there is not enough memory for this");
  } catch (const std::exception& error) {
    complain(error.what());
  }
  return 1;
}

}  // namespace
}  // namespace polyhead::app

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of write(), so that temporary files are still removed
  return polyhead::app::guarded({argv + std::min(argc, 1), argv + argc});
}
