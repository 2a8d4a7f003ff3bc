// A layer from a weights file, as commands name it: --parameters, --layout, --prefix, --heads.
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
  std::optional<double> scale;     // as the file's layout has it
  bool global_query = false;       // the same
  bool causal = false;             // the same
  bool relative_bias = false;  // the file has T5's table of biases, which is not applied: it does not say which distances its rows are for
  std::vector<std::string> names;  // of the layer's parameters in the file
};

// --layout and --prefix; --parameters and --heads belong to the command, which may mean more by them.
std::vector<CLI::Option*> add_layer_file(CLI::App& parser, LayerFile* file);

// The layer with the source's own rules, changed by the given ones. Notes on stderr what the file has and the layer does not use.
LoadedLayer load_layer(const LayerFile& file, const AttentionRules& rules, const LayerRules& layer_rules);

}  // namespace polyhead::app
