// Attention layers by name, with the constructor arguments of the tutorials and libraries that define them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/io/attention_parameters.h"
#include "polyhead/nn/multi_head_attention.h"

namespace polyhead::app {

// What a constructor's argument (LayerArgument) sets in nn::MultiHeadAttentionConfig. A `total` width is the sum over all heads: the config gets total / heads.
enum class Setting : std::uint8_t {
  heads, query_width, key_width, value_width, head_width, value_head_width, output_width,
  total_head_width, total_value_head_width,
  model_width,   // sets query_width and total_head_width
  hidden_width,  // sets total_head_width and output_width
  dropout,
  axis,
  bias,        // sets whether all projections have biases
  input_bias,  // sets whether the query, key, value and gate projections have biases
  gate, global_query, add_bias_kv, add_zero_attn
};

struct LayerArgument {
  std::string_view name;  // the argument's name in the source code of the layer
  Setting setting;
  std::string_view default_value;  // a value, or the name of another argument that has the same value

  bool is_flag() const { return setting >= Setting::bias; }
};

struct LayerConstructor {
  std::string_view name;    // the value that --layer takes, such as "d2l"
  std::string_view call;    // the class in the source code, such as "MultiHeadAttention"
  std::string_view source;  // the library or tutorial that defines the layer
  std::vector<LayerArgument> arguments;
  nn::MultiHeadAttentionConfig config = {};  // fixed settings, which no argument of the constructor changes
  std::string_view io_layout = {};           // layout of the parameters in files; "" if it has the name of the layer
  bool cross = false;                        // true if queries and keys come from different sequences
  bool pair_bias = false;                    // true if the layer adds a bias for each pair of a query and a key

  bool takes(Setting setting) const { return std::ranges::find(arguments, setting, &LayerArgument::setting) != arguments.end(); }
  std::string_view layout() const { return io_layout.empty() ? name : io_layout; }
};

using LayerArguments = std::map<std::string, std::string, std::less<>>;  // from an argument's name to its value; the value of a flag is "true" or "false"

std::span<const LayerConstructor> layer_constructors();
const LayerConstructor& find_constructor(const std::string& name);  // throws a UsageError with the nearest name if no layer has this name

std::string option_of(std::string_view argument);  // "num_hiddens" -> "--num-hiddens"

// Returns the values of all arguments: those in `given` (option -> value), and the defaults of the others. `heads`, if given, sets the constructor's
// argument for the number of heads. UsageError if the constructor does not have a given argument.
LayerArguments complete(const LayerConstructor& constructor, const std::map<std::string, std::string>& given, std::optional<std::int64_t> heads);

nn::MultiHeadAttentionConfig config_of(const LayerConstructor& constructor, const LayerArguments& arguments);

// "MultiHeadAttention(num_hiddens=100, num_heads=5, bias=false)"
std::string call_text(const LayerConstructor& constructor, const LayerArguments& arguments);

io::LayoutDescription layout_called(std::string_view name);

// Sets weight and bias of a projection so that output i equals input i. A projection with more outputs than inputs repeats the inputs: the second time with
// opposite sign, the third time as they are, and so on.
void copy_inputs(nn::Linear* projection);

// Normal numbers of mean 0 and standard deviation 1.
Tensor random_numbers(const Shape& shape, DType dtype, std::uint64_t seed);

}  // namespace polyhead::app
