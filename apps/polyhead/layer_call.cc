#include "layer_call.h"

#include <optional>
#include <string>

#include "arguments.h"
#include "core/join.h"
#include "parser.h"
#include "polyhead/models/attention_layer.h"
#include "polyhead/models/model_config.h"
#include "text_layout.h"

namespace polyhead::app {
namespace {

// In torch a mask or bias that differs between heads has the shape [B*N,T,S]. Returns such a tensor as a view [B,N,T,S], and other tensors unchanged.
ConstTensorView split_heads(ConstTensorView pairs, std::int64_t heads, const Shape& lead) {
  if (!pairs || pairs.rank() != 3 || lead.size() != 1 || pairs.extent(0) != lead[0] * heads) return pairs;
  return pairs.unflatten(0, {lead[0], heads});
}

// The number of heads in the config.json of a model's folder, if it has one.
std::optional<std::int64_t> heads_of_folder(const std::string& folder) {
  for (const auto& [name, value] : models::read_config(folder)) {
    const auto* heads = std::get_if<std::uint64_t>(&value);
    if (name == "heads" && heads != nullptr && *heads > 0) return static_cast<std::int64_t>(*heads);
  }
  return {};
}

}  // namespace

std::vector<Option*> add_layer_file(Parser& parser, LayerFile* file) {
  std::vector<std::string> names;
  for (const io::LayoutDescription& layout : io::layouts()) names.emplace_back(layout.name);
  return {add_value(
              parser, "--layout", &file->layout, [=](const std::string& word) { return read_choice(word, "layout", names); }, "LAYOUT",
              cat("how the file names its parameters (default: found by their names): ", join(names))),
          parser.add_option(
                  "--prefix", [file](const std::string& prefix) { file->prefix = prefix; },
                  "prefix of the parameters' names, such as encoder.layer.0 (default: that of the only layer in the file)")
              ->type_name("PREFIX")};
}

LoadedLayer load_layer(const LayerFile& file, const AttentionRules& rules, const LayerRules& layer_rules) {
  io::TensorFile tensors = io::open_tensors(file.path);
  io::LoadAttention options{.layout = file.layout, .prefix = file.prefix, .heads = file.heads.value_or(0)};
  io::AttentionParameters parameters = io::load_attention(tensors, options);
  const std::optional<std::int64_t> of_folder = file.heads || parameters.heads == 0 ? heads_of_folder(file.path) : std::nullopt;
  if (file.heads && of_folder && *file.heads != *of_folder) {
    throw UsageError(cat("--heads is ", *file.heads, ", but the config.json of '", printable(file.path), "' says ", *of_folder,
                         "; for a layer that has another number, name the file in place of its folder"));
  }
  if (parameters.heads == 0 && of_folder) {
    options.heads = *of_folder;
    parameters = io::load_attention(tensors, options);
  }
  if (parameters.heads == 0) {
    throw UsageError(cat("--heads: '", printable(file.path), "' does not say how many heads its layer has (layout ", parameters.layout, "); give the number"));
  }
  if (parameters.rotary && !layer_rules.rotary_base)
    throw UsageError(cat("--rotary: layers of the layout ", parameters.layout,
                         " rotate q and k by position, and the file does not say how; give the base (rope_theta in config.json, such as 10000), or off"));
  LoadedLayer loaded{.layout = parameters.layout,
                     .prefix = parameters.prefix,
                     .spelling = parameters.spelling,
                     .scale = parameters.scale,
                     .global_query = parameters.global_query,
                     .causal = parameters.causal,
                     .rotary_base = layer_rules.rotary_base.value_or(0),
                     .relative_bias = parameters.tensors.contains("relative_attention_bias")};
  for (const io::NamedTensor& parameter : io::store_attention(parameters)) loaded.names.push_back(parameter.name);
  parameters.tensors.erase("relative_attention_bias");  // nn::MultiHeadAttention has no such parameter
  nn::MultiHeadAttentionConfig settings;
  apply(rules, &settings);
  apply(layer_rules, &settings);
  if (rules.scale) parameters.scale = rules.scale;
  if (rules.empty_rows) parameters.empty_rows = *rules.empty_rows;
  if (layer_rules.global_query) parameters.global_query = *layer_rules.global_query != nn::GlobalQuery::off;
  loaded.layer = models::attention_layer(std::move(parameters), settings);
  return loaded;
}

void read_inputs(InputTensors* in, const LoadedLayer& loaded, LayerCall* call) {
  const nn::MultiHeadAttentionConfig& config = loaded.layer.config;
  const auto taken = [&](const char* name) { return in->as(in->take(name), name, config.dtype, kOfParameters); };
  call->query = in->as(in->required("query", "the input of the layer"), "query", config.dtype, kOfParameters);
  call->key = taken("key");
  call->value = taken("value");
  call->bias = taken("bias");
  if (config.dropout > 0) call->keep = in->take("dropout_keep");
}

void set_input(const LoadedLayer& loaded, LayerCall* call) {
  const nn::MultiHeadAttentionConfig& config = loaded.layer.config;
  call->input = {.query = call->query, .key = call->key, .value = call->value};
  call->weights = loaded.layer.maps_shape(call->input);
  call->lead = call->weights.first(call->weights.size() - 3);
  call->keys = call->weights[-1] - (config.add_bias_kv ? 1 : 0) - (config.add_zero_attn ? 1 : 0);
}

Shape shared_bias_shape(const LayerCall& call) {
  Shape shape = call.weights;
  for (int i = 0; i < call.lead.size(); ++i) shape[i] = 1;
  shape[-1] = call.keys;
  return shape;
}

void set_options(const LoadedLayer& loaded, const AttentionRules& rules, InputTensors* in, LayerCall* call) {
  const nn::MultiHeadAttentionConfig& config = loaded.layer.config;
  if (loaded.relative_bias && !call->bias && !call->options.relative_bias) {
    fail(ErrorCode::invalid_argument,
         "this layer adds a bias from its relative_attention_bias to the scores, and the file does not say how; give the bias as a "
         "tensor 'bias' ",
         shared_bias_shape(*call), ", or give attend its transpose as 'relative_bias.table', which --bidirectional and --max-distance describe");
  }
  call->options.mask = mask_of(rules, call->lead, call->weights[-2], call->keys);
  if (loaded.causal && rules.causal.empty()) call->options.mask.causal = Diagonal::bottom_right();
  if (in) in->read_masks(&call->options.mask);
  call->options.mask_like_input = rules.mask_like_input;
  call->options.bias = call->bias;
  if (loaded.rotary_base > 0) {
    const nn::RotaryEmbedding embedding({.width = config.head_width, .base = loaded.rotary_base});
    call->query_rotary = embedding.tables(0, call->weights[-2], accumulation_dtype(config.dtype));
    call->key_rotary = embedding.tables(0, call->keys, accumulation_dtype(config.dtype));
    call->options.rotary = call->query_rotary.rotary();
    call->options.rotary.key_cos = call->key_rotary.cos, call->options.rotary.key_sin = call->key_rotary.sin;
  }
  if (loaded.layout == "torch") {
    for (ConstTensorView* pairs : {&call->options.bias, &call->options.mask.attend, &call->options.mask.block}) {
      *pairs = split_heads(*pairs, config.heads, call->lead);
    }
  }
  if (loaded.layout == "multi_atten" && call->lead.size() == 1) {  // masks of this layout are [B,T,S], without a dimension for heads
    for (ConstTensorView* pairs : {&call->options.mask.attend, &call->options.mask.block}) {
      if (pairs->rank() == 3) *pairs = pairs->unsqueeze(-3);
    }
  }
  if (config.dropout > 0) {
    call->options.mode = nn::Mode::training;
    call->options.dropout_seed = rules.dropout_seed;
    call->options.dropout_keep = call->keep;
  }
}

}  // namespace polyhead::app
