// Layers by the constructors that tutorials and libraries give them: a row for each, which maps its arguments to a configuration.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/nn/trace.h"

namespace polyhead::app {

enum class ArgumentType { count, number, flag };

struct LayerArgument {
  std::string_view name;           // as the source spells it
  std::string_view default_value;  // another argument's name: the same as that
  ArgumentType type = ArgumentType::count;
};

// Arguments as words, complete with the defaults.
class LayerArguments {
 public:
  std::int64_t count(std::string_view name) const;  // at least 1
  std::int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;
  bool flag(std::string_view name) const;
  bool has(std::string_view name) const { return words.contains(std::string(name)); }

  std::map<std::string, std::string> words;
};

struct LayerConstructor {
  std::string_view name;    // of --layer, "d2l"
  std::string_view layout;  // of weights in files that belong to it; "" : as the name
  std::string_view call;    // "MultiHeadAttention"
  std::string_view source;  // where readers know it from
  std::vector<LayerArgument> arguments;
  std::string_view heads;  // the argument that --heads stands for; "" : one head
  nn::TraceNames names;
  nn::MultiHeadAttentionConfig (*config)(const LayerArguments&);  // but for what the layout says
  bool cross = false;                                             // queries and keys are different sequences
  bool pair_bias = false;                                         // a bias for each pair belongs to the layer
  bool causal = false;                                            // this and what follows: as its row in io::layouts()
  std::optional<EmptyRows> empty_rows = {};
};

std::span<const LayerConstructor> layer_constructors();
const LayerConstructor& find_constructor(const std::string& name);       // UsageError with the nearest
const LayerConstructor* constructor_of_layout(std::string_view layout);  // nullptr: there is none

std::string option_of(std::string_view argument);  // "num_hiddens" -> "--num-hiddens"

// The arguments that were given with the constructor's defaults for the rest. UsageError for one that it does not take.
LayerArguments complete(const LayerConstructor& constructor, const std::map<std::string, std::string>& given,
                        std::optional<std::int64_t> heads);

// "MultiHeadAttention(num_hiddens=100, num_heads=5, bias=false)"
std::string call_text(const LayerConstructor& constructor, const LayerArguments& arguments);

}  // namespace polyhead::app
