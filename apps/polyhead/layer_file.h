// A layer whose parameters come from a file: the options --parameters, --layout, --prefix and --heads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attention_rules.h"
#include "polyhead/io/attention_parameters.h"

namespace polyhead::app {

struct LayerFile {
  std::string path, layout;
  std::optional<std::string> prefix;
  std::optional<std::int64_t> heads;
};

struct LoadedLayer {
  nn::MultiHeadAttention layer;
  std::string layout, prefix;
  io::Spelling spelling;
  std::optional<double> scale;  // scale, global_query and causal: the layout's values, before options change them
  bool global_query = false;
  bool causal = false;
  // The file has T5's table of biases. It is not applied, because the file does not say which distances its rows are for.
  bool relative_bias = false;
  std::vector<std::string> names;  // of the layer's parameters in the file
};

// Adds --layout and --prefix. Each command adds --parameters and --heads, because their help differs.
std::vector<CLI::Option*> add_layer_file(CLI::App& parser, LayerFile* file);

// The layer with the defaults of its layout, changed by the rules that are given.
LoadedLayer load_layer(const LayerFile& file, const AttentionRules& rules, const LayerRules& layer_rules);

}  // namespace polyhead::app
