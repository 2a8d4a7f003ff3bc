#include "layer_file.h"

#include "arguments.h"
#include "model_config.h"
#include "polyhead/models/attention_layer.h"
#include "words.h"

namespace polyhead::app {

std::vector<CLI::Option*> add_layer_file(CLI::App& parser, LayerFile* file) {
  std::vector<std::string> names;
  std::string list;
  for (const io::LayoutDescription& layout : io::layouts()) {
    names.emplace_back(layout.name);
    append(list, cat(list.empty() ? "" : ", ", layout.name));
  }
  return {add_value(
              parser, "--layout", &file->layout, [=](const std::string& word) { return read_choice(word, "layout", names); }, "LAYOUT",
              cat("how the file names its parameters (default: the one that fits): ", list)),
          parser
              .add_option_function<std::string>(
                  "--prefix", [file](const std::string& prefix) { file->prefix = prefix; },
                  "what their names begin with, as encoder.layer.0 (default: the only layer of the file)")
              ->type_name("PREFIX")};
}

LoadedLayer load_layer(const LayerFile& file, const AttentionRules& rules, const LayerRules& layer_rules) {
  io::TensorFile tensors = io::open_tensors(file.path);
  io::LoadAttention options{.layout = file.layout, .prefix = file.prefix, .heads = file.heads.value_or(0)};
  io::AttentionParameters weights = io::load_attention(tensors, options);
  if (weights.heads == 0) {
    const Json config = read_config(file.path);
    if (const auto heads = config.find("heads"); heads != config.end() && heads->is_number_integer() && *heads > 0) {
      options.heads = *heads;
      weights = io::load_attention(tensors, options);
    }
  }
  if (weights.heads == 0) {
    throw UsageError(cat("--heads: '", printable(file.path), "' does not say how many heads its layer has (layout ", weights.layout, "); give the number"));
  }
  LoadedLayer loaded{.layout = weights.layout,
                     .prefix = weights.prefix,
                     .spelling = weights.spelling,
                     .scale = weights.scale,
                     .global_query = weights.global_query,
                     .causal = weights.causal,
                     .relative_bias = weights.tensors.contains("relative_attention_bias")};
  for (const io::NamedTensor& parameter : io::store_attention(weights)) loaded.names.push_back(parameter.name);
  weights.tensors.erase("relative_attention_bias");  // the layer has no place for it; loaded.relative_bias tells
  nn::MultiHeadAttentionConfig settings;
  apply(rules, &settings);
  apply(layer_rules, &settings);
  if (rules.scale) weights.scale = rules.scale;
  if (rules.empty_rows) weights.empty_rows = *rules.empty_rows;
  if (layer_rules.global_query) weights.global_query = *layer_rules.global_query != nn::GlobalQuery::off;
  loaded.layer = models::attention_layer(std::move(weights), settings);
  return loaded;
}

}  // namespace polyhead::app
