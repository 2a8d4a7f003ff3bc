#include "help.h"

#include <algorithm>
#include <vector>

#include "core/text.h"
#include "words.h"

namespace polyhead::app {
namespace {

struct Entry {
  std::string name;
  std::string meaning;
};

// Two columns, or the meaning beneath the name where two would leave too little room.
std::string table(const std::vector<Entry>& entries, std::size_t width) {
  constexpr std::size_t kIndent = 2, kGap = 2, kWidestName = 28;
  std::size_t longest = 0;
  for (const Entry& entry : entries) {
    if (columns(entry.name) <= kWidestName) longest = std::max(longest, columns(entry.name));
  }
  const std::size_t start = kIndent + longest + kGap;
  const bool beneath = width < start + 36;
  std::string text;
  for (const Entry& entry : entries) {
    const std::size_t margin = beneath ? 6 : start;
    const std::string meaning = wrap(entry.meaning, width, margin);
    std::string name = std::string(kIndent, ' ') + entry.name;
    if (beneath || columns(name) + kGap > margin) {
      append(text, cat(name, "\n", meaning));
    } else {
      append(text, cat(pad_right(name, margin), std::string_view(meaning).substr(std::min(margin, meaning.size()))));
    }
  }
  return text;
}

std::string examples_text(const std::vector<Example>& examples, std::size_t width) {
  std::string text = "Examples:\n";
  for (const Example& example : examples) {
    // A command is not broken: it is there to be copied.
    append(text, cat("  ", example.command, "\n", wrap(example.meaning, width, 6)));
  }
  return text;
}

std::string option_name(const CLI::Option& option) {
  std::string text;
  for (const std::string& name : option.get_snames()) append(text, cat(text.empty() ? "-" : ", -", name));
  for (const std::string& name : option.get_lnames()) append(text, cat(text.empty() ? "--" : ", --", name));
  if (option.get_type_size() != 0) append(text, cat(" ", option.get_type_name()));
  return text;
}

}  // namespace

std::string help_text(const CLI::App& parser, const Subcommand& subcommand, std::size_t width) {
  std::vector<Entry> arguments, options;
  std::string usage = parser.get_name();
  for (const CLI::Option* option : parser.get_options()) {
    if (option->get_positional()) {
      const std::string name = option->get_name(true);
      arguments.push_back({name, option->get_description()});
      append(usage, option->get_required() ? cat(" ", name) : cat(" [", name, "]"));
    } else {
      options.push_back({option_name(*option), option->get_description()});
      if (option->get_required()) append(usage, cat(" --", option->get_lnames().front(), " ", option->get_type_name()));
    }
  }
  std::string text =
      cat(wrap(cat(parser.get_name(), ": ", parser.get_description()), width), "\n", examples_text(subcommand.examples, width));
  append(text, cat("\n", wrap(cat("Usage: ", usage, " [OPTIONS]"), width)));
  if (!arguments.empty()) append(text, cat("\nArguments:\n", table(arguments, width)));
  append(text, cat("\nOptions:\n", table(options, width)));
  if (!subcommand.notes.empty()) append(text, cat("\n", wrap(subcommand.notes, width)));
  return text;
}

std::string overview(std::span<const Command> commands, std::size_t width, bool brief) {
  const std::vector<Example> examples{
      {"polyhead view MODEL_DIR --text \"The quick brown fox\" -o fox.html", "one HTML page with what every head of the model attends to"},
      {"polyhead trace --layer d2l --num-hiddens 100 --heads 5", "a layer step by step, with the shape and meaning of each"},
      {"polyhead attend --parameters layer.safetensors --heads 4 --tensors in.safetensors -o out.safetensors",
       "a layer's output on tensors of yours"},
      {"polyhead inspect model.safetensors", "what is in a file, and which attention layers"},
      {"polyhead explain --q 1,8,512,64 --k 1,8,512,64", "how such a problem would be computed"},
  };
  std::vector<Entry> entries;
  for (const Command& command : commands) entries.push_back({std::string(command.name), std::string(command.summary)});
  std::string text = wrap("polyhead: multi-head attention, computed and shown", width);
  if (!brief) append(text, cat("\n", examples_text(examples, width)));
  append(text, cat("\nUsage: polyhead COMMAND [ARGUMENTS]\n\nCommands:\n", table(entries, width)));
  if (!brief) {
    append(text, cat("\nOptions:\n", table({{"-h, --help", "this text"}, {"--version", "the version"}}, width)));
    append(
        text,
        cat("\n", wrap("Results go to standard output, notes and progress to standard error. Exit status: 0 done, 1 the operation failed, "
                       "2 wrong arguments.",
                       width)));
  }
  append(text, cat("\n", wrap(brief ? "'polyhead help' has examples; 'polyhead help COMMAND' is about one command."
                                    : "'polyhead help COMMAND' is about one command.",
                              width)));
  return text;
}

}  // namespace polyhead::app
