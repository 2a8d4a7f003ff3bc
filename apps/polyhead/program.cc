#include <unistd.h>

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
#include "parser.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/version.h"
#include "program.h"
#include "suggest.h"
#include "temporary_folder.h"
#include "terminal.h"

namespace polyhead::app {

Subcommand declare_view(Parser& parser);
Subcommand declare_trace(Parser& parser);
Subcommand declare_train(Parser& parser);
Subcommand declare_try(Parser& parser);
Subcommand declare_quantise(Parser& parser);
Subcommand declare_attend(Parser& parser);
Subcommand declare_maps(Parser& parser);
Subcommand declare_inspect(Parser& parser);
Subcommand declare_devices(Parser& parser);
Subcommand declare_explain(Parser& parser);

namespace {

constexpr std::array kCommands{
    Command{"view", "show what every head of a sentence model attends to", declare_view},
    Command{"trace", "show a layer step by step, with the shape and meaning of each tensor", declare_trace},
    Command{"train", "train a small model: classify, translate, summarise, heads, digits", declare_train},
    Command{"try", "ask a trained model, or score it on a file of examples", declare_try},
    Command{"quantise", "store a trained model with int8 matrices", declare_quantise},
    Command{"attend", "run a layer, or attention alone, on tensors from a file", declare_attend},
    Command{"maps", "attention maps of q and k: parts, bands, statistics, rollout", declare_maps},
    Command{"inspect", "list the tensors, metadata and attention layers of a file", declare_inspect},
    Command{"devices", "show the processor, its instruction sets and the backends", declare_devices},
    Command{"explain", "show how attention of given shapes would be computed", declare_explain},
};

void run_command(const Command& command, std::vector<std::string> arguments) {
  Parser parser(cat("polyhead ", command.name), std::string(command.summary));
  const Subcommand subcommand = command.declare(parser);
  if (!parser.parse(std::move(arguments))) return print(help_text(parser, subcommand, terminal_width(Stream::out)));
  subcommand.run();
}

// Returns the exit status.
int run(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    print_stderr(overview(kCommands, terminal_width(Stream::err), true));
    return 2;
  }
  const std::string& first = arguments[0];
  if (first == "help" && arguments.size() > 1 && arguments[1] != "help") return run({arguments[1], "--help"});
  if (first == "--help" || first == "-h" || first == "help") {
    print(overview(kCommands, terminal_width(Stream::out), false));
    return 0;
  }
  if (first == "--version") {
    print("polyhead " POLYHEAD_VERSION "\n");
    return 0;
  }
  std::vector<std::string> names{"help", "--help", "--version"};
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

int run_and_report_errors(const std::vector<std::string>& arguments) {
  try {
    return run(arguments);
  } catch (const ClosedPipe&) {
    return 0;
  } catch (const UsageError& error) {
    print_diagnostic(error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    print_diagnostic("there is not enough memory for this command");
  } catch (const std::exception& error) {
    print_diagnostic(error.what());
  }
  return 1;
}

// Removes temporary files, and then ends the program by the signal's default action, so that a shell can tell by which signal it ended.
void end_by_signal(int signal) {
  io::remove_temporary_files();  // first, because the folder may hold some of these files, and a folder with files cannot be removed
  remove_temporary_folder();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Ends the program with a message, from signal handlers and std::terminate. It calls nothing that allocates memory or locks.
[[noreturn]] void end_with(std::string_view sentence) noexcept {
  io::remove_temporary_files();
  remove_temporary_folder();
  (void)!::write(STDERR_FILENO, sentence.data(), sentence.size());
  _exit(1);
}

// Handles SIGBUS. Tensor files are mapped into memory; if a file is shortened, a read beyond its new end raises SIGBUS, on any thread.
void end_by_bus_error(int signal, siginfo_t* cause, void*) {
  if (cause->si_code != BUS_ADRERR) return end_by_signal(signal);
  end_with("polyhead: a file became shorter while it was read\n");
}

void handle_signals() {
  std::signal(SIGPIPE, SIG_IGN);  // a write to a closed pipe then fails with EPIPE, and the program chooses its exit status
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit of `ulimit -f` then fails with EFBIG
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(signal, end_by_signal) == SIG_IGN) std::signal(signal, SIG_IGN);  // keep ignoring a signal that was ignored at the start, as under nohup
  }
  struct sigaction bus_error {};
  bus_error.sa_sigaction = end_by_bus_error;
  bus_error.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &bus_error, nullptr);
  // std::terminate is called if memory runs out in a destructor, because the destructor of nlohmann::json allocates.
  std::set_terminate([] { end_with("polyhead: ended by an internal error, most likely because there is not enough memory\n"); });
}

}  // namespace

int run_program(const std::vector<std::string>& arguments) {
  handle_signals();
  return run_and_report_errors(arguments);
}

}  // namespace polyhead::app
