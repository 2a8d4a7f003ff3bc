#include "layer_call.h"

#include "core/text.h"

namespace polyhead::app {
namespace {

// torch has [B*N,T,S] for a mask or bias of each head. Returns it as the view [B,N,T,S]; returns other tensors unchanged.
ConstTensorView split_heads(ConstTensorView pairs, std::int64_t heads, const Shape& lead) {
  if (!pairs || pairs.rank() != 3 || lead.size() != 1 || pairs.extent(0) != lead[0] * heads) return pairs;
  return pairs.unflatten(0, {lead[0], heads});
}

}  // namespace

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
  if (loaded.relative_bias && !call->bias) {
    fail(ErrorCode::invalid_argument,
         "this layer adds a bias from its relative_attention_bias to the scores, and the file does not say how; give the bias as a "
         "tensor 'bias' ",
         shared_bias_shape(*call));
  }
  call->options.mask = mask_of(rules, call->lead, call->weights[-2], call->keys);
  if (loaded.causal && rules.causal.empty()) call->options.mask.causal = Diagonal::bottom_right();
  if (in) in->read_masks(&call->options.mask);
  call->options.bias = call->bias;
  if (loaded.layout == "torch") {
    for (ConstTensorView* pairs : {&call->options.bias, &call->options.mask.attend, &call->options.mask.block}) {
      *pairs = split_heads(*pairs, config.heads, call->lead);
    }
  }
  if (config.dropout > 0) {
    call->options.mode = nn::Mode::training;
    call->options.dropout_seed = rules.dropout_seed;
    call->options.dropout_keep = call->keep;
  }
}

}  // namespace polyhead::app
