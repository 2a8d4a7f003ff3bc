#include "layer_file.h"

#include "arguments.h"
#include "core/join.h"
#include "polyhead/models/attention_layer.h"
#include "polyhead/models/model_config.h"
#include "text_layout.h"

namespace polyhead::app {

std::vector<CLI::Option*> add_layer_file(CLI::App& parser, LayerFile* file) {
  std::vector<std::string> names;
  for (const io::LayoutDescription& layout : io::layouts()) names.emplace_back(layout.name);
  return {add_value(
              parser, "--layout", &file->layout, [=](const std::string& word) { return read_choice(word, "layout", names); }, "LAYOUT",
              cat("how the file names its parameters (default: found by their names): ", join(names))),
          parser
              .add_option_function<std::string>(
                  "--prefix", [file](const std::string& prefix) { file->prefix = prefix; },
                  "what these names begin with, such as encoder.layer.0 (default: the only layer of the file)")
              ->type_name("PREFIX")};
}

LoadedLayer load_layer(const LayerFile& file, const AttentionRules& rules, const LayerRules& layer_rules) {
  io::TensorFile tensors = io::open_tensors(file.path);
  io::LoadAttention options{.layout = file.layout, .prefix = file.prefix, .heads = file.heads.value_or(0)};
  io::AttentionParameters parameters = io::load_attention(tensors, options);
  if (parameters.heads == 0) {
    for (const auto& [name, value] : models::read_config(file.path)) {
      const auto* heads = std::get_if<std::uint64_t>(&value);
      if (name != "heads" || heads == nullptr || *heads == 0) continue;
      options.heads = static_cast<std::int64_t>(*heads);
      parameters = io::load_attention(tensors, options);
    }
  }
  if (parameters.heads == 0) {
    throw UsageError(cat("--heads: '", printable(file.path), "' does not say how many heads its layer has (layout ", parameters.layout, "); give the number"));
  }
  LoadedLayer loaded{.layout = parameters.layout,
                     .prefix = parameters.prefix,
                     .spelling = parameters.spelling,
                     .scale = parameters.scale,
                     .global_query = parameters.global_query,
                     .causal = parameters.causal,
                     .relative_bias = parameters.tensors.contains("relative_attention_bias")};
  for (const io::NamedTensor& parameter : io::store_attention(parameters)) loaded.names.push_back(parameter.name);
  parameters.tensors.erase("relative_attention_bias");  // not a parameter of nn::MultiHeadAttention
  nn::MultiHeadAttentionConfig settings;
  apply(rules, &settings);
  apply(layer_rules, &settings);
  if (rules.scale) parameters.scale = rules.scale;
  if (rules.empty_rows) parameters.empty_rows = *rules.empty_rows;
  if (layer_rules.global_query) parameters.global_query = *layer_rules.global_query != nn::GlobalQuery::off;
  loaded.layer = models::attention_layer(std::move(parameters), settings);
  return loaded;
}

}  // namespace polyhead::app
