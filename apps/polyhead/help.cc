#include "help.h"

#include <algorithm>
#include <vector>

#include "core/text.h"
#include "parser.h"
#include "text_layout.h"

namespace polyhead::app {
namespace {

struct Entry {
  std::string name;
  std::string meaning;
};

// A table of names and meanings; in a narrow terminal each meaning is written below its name.
std::string table(const std::vector<Entry>& entries, std::size_t width) {
  constexpr std::size_t kIndent = 2, kGap = 2, kWidestName = 28;
  std::size_t longest = 0;
  for (const Entry& entry : entries) {
    if (columns(entry.name) <= kWidestName) longest = std::max(longest, columns(entry.name));
  }
  const std::size_t start = kIndent + longest + kGap;
  const bool below = width < start + 36;
  std::string text;
  for (const Entry& entry : entries) {
    const std::string name = std::string(kIndent, ' ') + entry.name;
    const bool beside = !below && columns(name) + kGap <= start;
    append(text, beside ? hang(name, entry.meaning, start, width) : cat(name, "\n", wrap(entry.meaning, width, below ? 6 : start)));
  }
  return text;
}

std::string examples_text(const std::vector<Example>& examples, std::size_t width) {
  std::string text = "Examples:\n";
  for (const Example& example : examples) {
    // Commands are not wrapped, so that they can be copied.
    append(text, cat("  ", example.command, "\n", wrap(example.meaning, width, 6)));
  }
  return text;
}

std::string option_name(const Option& option) {
  std::string text;
  for (const std::string& name : option.names()) append(text, cat(text.empty() ? "" : ", ", name));
  if (!option.type().empty()) append(text, cat(" ", option.type()));
  return text;
}

}  // namespace

std::string help_text(const Parser& parser, const Subcommand& subcommand, std::size_t width) {
  std::vector<Entry> arguments, options;
  std::string usage = parser.name();
  for (const Option* option : parser.options()) {
    if (option->is_positional()) {
      const std::string name = option->name();
      arguments.push_back({name, option->description()});
      append(usage, option->is_required() ? cat(" ", name) : cat(" [", name, "]"));
    } else {
      options.push_back({option_name(*option), option->description()});
      if (option->is_required()) append(usage, cat(" ", option->name(), " ", option->type()));
    }
  }
  std::string text =
      cat(wrap(cat(parser.name(), ": ", parser.summary()), width), "\n", examples_text(subcommand.examples, width));
  append(text, cat("\n", wrap(cat("Usage: ", usage, " [OPTIONS]"), width)));
  if (!arguments.empty()) append(text, cat("\nArguments:\n", table(arguments, width)));
  append(text, cat("\nOptions:\n", table(options, width)));
  if (!subcommand.notes.empty()) append(text, cat("\n", wrap(subcommand.notes, width)));
  return text;
}

std::string overview(std::span<const Command> commands, std::size_t width, bool brief) {
  const std::vector<Example> examples{
      {"polyhead view MODEL_DIR --text \"The quick brown fox\" -o fox.html", "write one HTML page with the attention maps of all heads"},
      {"polyhead trace --layer d2l --num-hiddens 100 --heads 5", "show each step of a layer, with its shape and meaning"},
      {"polyhead train digits --data digits.npz -o digits", "train a small model; translate, classify and summarise are the other tasks"},
      {"polyhead try digits drawing.png", "which digit an image shows; models for each task of `try` are part of polyhead"},
      {"polyhead quantise digits -o small", "store the trained model with int8 matrices"},
      {"polyhead attend --parameters layer.safetensors --heads 4 --tensors in.safetensors -o out.safetensors",
       "run a layer on your tensors"},
      {"polyhead maps --tensors qk.safetensors -o maps.safetensors --statistics --top-keys 16", "what each head attends to, from q and k alone"},
      {"polyhead inspect model.safetensors", "list a file's tensors and attention layers"},
      {"polyhead explain --q 1,8,512,64 --k 1,8,512,64", "show how attention of these shapes would be computed"},
  };
  std::vector<Entry> entries;
  for (const Command& command : commands) entries.push_back({std::string(command.name), std::string(command.summary)});
  std::string text = wrap("polyhead: compute multi-head attention and show it", width);
  if (!brief) append(text, cat("\n", examples_text(examples, width)));
  append(text, cat("\nUsage: polyhead COMMAND [ARGUMENTS]\n\nCommands:\n", table(entries, width)));
  if (!brief) {
    append(text, cat("\nOptions:\n", table({{"-h, --help", "show this text"}, {"--version", "show the version"}}, width)));
    append(text, cat("\n", wrap("Results go to stdout, diagnostics and progress to stderr. Exit status: 0 success, 1 the operation failed, "
                                "2 wrong arguments.",
                                width)));
  }
  append(text, cat("\n", wrap(cat(brief ? "'polyhead help' shows examples; " : "", "'polyhead help COMMAND' explains one command."), width)));
  return text;
}

}  // namespace polyhead::app
