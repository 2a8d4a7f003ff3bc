#include "layer_call.h"

#include "core/text.h"

namespace polyhead::app {
namespace {

// torch gives masks and biases of single heads as [B*N,T,S]: the same memory as [B,N,T,S]. Any other tensor stays as it is.
ConstTensorView with_heads_apart(ConstTensorView pairs, std::int64_t heads, const Shape& lead) {
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

void measure(const LoadedLayer& loaded, LayerCall* call) {
  const nn::MultiHeadAttentionConfig& config = loaded.layer.config;
  call->input = {.query = call->query, .key = call->key, .value = call->value};
  call->maps = loaded.layer.maps_shape(call->input);
  call->lead = call->maps.first(call->maps.size() - 3);
  call->keys = call->maps[-1] - (config.add_bias_kv ? 1 : 0) - (config.add_zero_attn ? 1 : 0);
}

Shape head_bias_shape(const LayerCall& call) {
  Shape shape = call.maps;
  for (int i = 0; i + 3 < shape.size(); ++i) shape[i] = 1;
  shape[-1] = call.keys;
  return shape;
}

void prepare(const LoadedLayer& loaded, AttentionRules rules, InputTensors* in, LayerCall* call) {
  const nn::MultiHeadAttentionConfig& config = loaded.layer.config;
  if (loaded.relative_bias && !call->bias) {
    fail(ErrorCode::invalid_argument,
         "the scores of this layer need the bias of its relative_attention_bias, which no file says how to apply; give a "
         "tensor 'bias' ",
         head_bias_shape(*call), ", one for each head and pair");
  }
  if (loaded.causal && rules.causal.empty()) rules.causal = "bottom_right";
  call->options.mask = mask_of(rules, call->lead, call->maps[-2], call->keys, &call->lengths);
  if (in) in->read_masks(&call->options.mask);
  call->options.bias = call->bias;
  if (loaded.layout == "torch") {
    for (ConstTensorView* pairs : {&call->options.bias, &call->options.mask.attend, &call->options.mask.block}) {
      *pairs = with_heads_apart(*pairs, config.heads, call->lead);
    }
  }
  if (config.dropout > 0) {
    call->options.mode = nn::Mode::training;
    call->options.dropout_seed = rules.dropout_seed;
    call->options.dropout_keep = call->keep;
  }
}

}  // namespace polyhead::app
