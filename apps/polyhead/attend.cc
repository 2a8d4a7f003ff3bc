#include <array>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "attention_rules.h"
#include "format.h"
#include "input_tensors.h"
#include "layer_call.h"
#include "map_results.h"
#include "output_path.h"
#include "parser.h"
#include "polyhead/models/attention_layer.h"
#include "polyhead/nn/value_norms.h"
#include "results.h"
#include "score_inputs.h"
#include "text_layout.h"

namespace polyhead::app {
namespace {

struct AttendOptions {
  LayerFile file;
  AttentionRules rules;
  LayerRules layer_rules;
  std::string tensors, output;
  MapResults maps;
  bool gradients = false, json = false;
};

Tensor gradient_of_output(InputTensors* in, DType dtype, std::string_view whose) {
  return in->as(in->required("d_out", "the gradient of the output that --gradients starts from"), "d_out", dtype, whose);
}

// Memory for the gradients of sink logits and of a relative bias.
struct LearnedGradients {
  Tensor d_sink, d_relative_bias;

  explicit LearnedGradients(const Learned& learned) {
    if (learned.sink) d_sink = Tensor(learned.sink.dtype(), learned.sink.shape());
    if (const ConstTensorView& of = learned.relative_bias.parameter()) d_relative_bias = Tensor(of.dtype(), of.shape());
  }
  void add(const Learned& learned, Results* results) {
    if (learned.sink) results->push_back({"d_sink", std::move(d_sink)});
    if (learned.relative_bias) results->push_back({cat("d_", learned.slopes ? kSlopes : kTable), std::move(d_relative_bias)});
  }
};

// Computes scaled dot-product attention of q, k and v, without a layer.
std::string run_sdpa(const AttendOptions& o, InputTensors* in, Results* results) {
  constexpr const char* kRole = "which is required without --parameters";
  ScoreInputs scores(in, o.rules, "attend", kRole);
  const Tensor &q = scores.q, &k = scores.k, &bias = scores.bias, v = in->as(in->required("v", kRole), "v", q.dtype(), "of q");
  require(v.view().rank() >= 3, "attend: v is ", v.shape(), "; it must be [*,K,S,V]");
  SdpaOptions& options = scores.options;
  Tensor keep, weight;
  if (o.maps.by_norms) weight = in->as(in->required("output_weight", kOutputWeight), "output_weight", accumulation_dtype(q.dtype()), "of q");
  if (options.dropout.p > 0) options.dropout.keep = keep = in->take("dropout_keep");

  Shape out_shape = q.shape(), weights_shape = q.shape();
  out_shape[-1] = v.extent(-1);
  weights_shape[-1] = k.extent(-2);
  Tensor out(q.dtype(), out_shape), lse(is_floating(q.dtype()) ? accumulation_dtype(q.dtype()) : DType::f32, q.shape().first(q.shape().size() - 1));
  sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, options);
  Tensor norms;
  if (o.maps.by_norms) norms = norms_of_values(Tensor::copy_of(v, accumulation_dtype(q.dtype())), weight, q.shape());
  append_map_results(o.maps, {.q = q, .k = k}, options, weights_shape, lse, norms, in, results);
  if (o.gradients) {
    const Tensor d_out = gradient_of_output(in, q.dtype(), "of q");
    const auto like = [](const Tensor& x) { return x ? Tensor(x.dtype(), x.shape()) : Tensor(); };
    Tensor d_q = like(q), d_k = like(k), d_v = like(v), d_bias = like(bias);
    LearnedGradients learned(scores.learned);
    sdpa_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v, .d_bias = d_bias,
                   .d_relative_bias = learned.d_relative_bias, .d_sink = learned.d_sink},
                  options);
    results->push_back({"d_q", std::move(d_q)});
    results->push_back({"d_k", std::move(d_k)});
    results->push_back({"d_v", std::move(d_v)});
    if (d_bias) results->push_back({"d_bias", std::move(d_bias)});
    learned.add(scores.learned, results);
  }
  results->push_back({"out", std::move(out)});
  in->report_unused({"q", "k", "v"}, {});
  return "scaled dot-product attention";
}

std::string run_layer(const AttendOptions& o, InputTensors* in, Results* results) {
  const LoadedLayer loaded = load_layer(o.file, o.rules, o.layer_rules);
  const nn::MultiHeadAttention& layer = loaded.layer;
  const DType dtype = layer.config.dtype;
  LayerCall call;
  read_inputs(in, loaded, &call);
  set_input(loaded, &call);
  const Learned learned(in, o.rules, dtype);
  call.options.sink = learned.sink, call.options.relative_bias = learned.relative_bias;
  set_options(loaded, o.rules, in, &call);
  nn::MultiHeadAttention::Saved saved;
  Tensor out(dtype, layer.output_shape(call.input));
  layer.forward(call.input, out, call.options, &saved);
  Tensor norms;
  if (o.maps.by_norms) {
    Shape shape = call.weights;
    shape.erase(shape.size() - 2);
    norms = Tensor(accumulation_dtype(dtype), shape);
    const nn::MultiHeadAttention* const layers[] = {&layer};
    nn::value_norms(layers, saved.v_heads.unsqueeze(0), norms.view().unsqueeze(0));
  }
  append_map_results(o.maps, saved.maps(), saved.sdpa, call.weights, saved.lse, norms, in, results);
  if (o.gradients) {
    const Tensor d_out = gradient_of_output(in, dtype, kOfParameters);
    const auto like = [&](const Tensor& x) { return x ? Tensor(dtype, x.shape()) : Tensor(); };
    Tensor d_query = like(call.query), d_key = like(call.key), d_value = like(call.value);
    Tensor d_bias = call.bias ? Tensor(dtype, call.options.bias.shape()) : Tensor();
    LearnedGradients d_learned(learned);
    nn::MultiHeadAttention d_layer = zeros_like(layer);
    layer.backward(saved, d_out, {.query = d_query, .key = d_key, .value = d_value, .bias = d_bias, .relative_bias = d_learned.d_relative_bias, .sink = d_learned.d_sink,
                                     .parameters = &d_layer});
    results->push_back({"d_query", std::move(d_query)});
    if (d_key) results->push_back({"d_key", std::move(d_key)});
    if (d_value) results->push_back({"d_value", std::move(d_value)});
    if (d_bias) results->push_back({"d_bias", Tensor::copy_of(d_bias.view().reshape(call.bias.shape()))});
    d_learned.add(learned, results);
    io::AttentionParameters parameters = models::attention_parameters(d_layer, loaded.layout, loaded.prefix);
    parameters.spelling = loaded.spelling;
    parameters.scale = loaded.scale;  // store_attention() needs scale and global_query as the layout defines them; options may have changed those of the layer
    parameters.global_query = loaded.global_query;
    for (io::NamedTensor& d : io::store_attention(parameters)) results->push_back({"d_" + d.name, std::move(d.tensor)});
  }
  results->push_back({"out", std::move(out)});
  in->report_unused({"query", "key", "value"}, loaded.names);
  return cat("layer of layout ", loaded.layout, loaded.prefix.empty() ? "" : cat(" at ", printable(loaded.prefix)), ", ", counted(layer.config.heads, "head"));
}

void run_attend(const AttendOptions& o) {
  check_map_results(o.maps);
  check_tensor_format("--output", o.output);
  check_not_input(o.output, std::array{o.tensors, o.file.path});
  check_writable(o.output);
  InputTensors in(o.tensors);
  Results results;
  const std::string what = o.file.path.empty() ? run_sdpa(o, &in, &results) : run_layer(o, &in, &results);
  io::save_tensors(o.output, results);
  report(what, o.output, results, o.json);
}

}  // namespace

Subcommand declare_attend(Parser& parser) {
  const auto o = std::make_shared<AttendOptions>();
  parser.add_option("--tensors", o->tensors, "the input tensors; may be the same file as --parameters")->type_name("FILE")->required();
  parser.add_option("-o,--output", o->output, "write the results to this file, .safetensors or .npz")->type_name("FILE")->required();
  Option* parameters = parser.add_option("--parameters", o->file.path, "the layer's parameters; without this option attention is computed from q, k and v")->type_name("FILE");
  std::vector<Option*> of_layers = add_layer_file(parser, &o->file);
  of_layers.push_back(add_value(parser, "--heads", &o->file.heads, read_positive, "N",
                                "number of heads, if neither the parameters nor config.json in their folder say it"));
  add_map_results(parser, &o->maps, true);
  parser.add_flag("--gradients", o->gradients, "also write the gradients of sum(out * d_out) by inputs, biases, sink logits and parameters, named d_NAME");
  add_attention_rules(parser, &o->rules);
  add_precision(parser, &o->rules);
  add_key_bounds(parser, &o->rules);
  add_relative_bias(parser, &o->rules);
  for (Option* option : add_layer_rules(parser, &o->layer_rules)) of_layers.push_back(option);
  of_layers.push_back(add_mask_like_input(parser, &o->rules));
  for (Option* option : of_layers) option->needs(parameters);
  parser.add_flag("--json", o->json, "machine-readable: {\"operation\", \"output\", \"tensors\": [{\"name\", \"dtype\", \"shape\"}, ...]}");
  return {
      .examples = {{"polyhead attend --parameters layer.safetensors --heads 4 --tensors in.safetensors -o out.safetensors --attention-weights",
                    "the output and the attention weights of a layer"},
                   {"polyhead attend --parameters model.safetensors --prefix encoder.layer.0 --heads 12 --tensors in.safetensors -o out.npz",
                    "one layer of a model"},
                   {"polyhead attend --parameters layer.safetensors --heads 4 --tensors in.safetensors -o out.safetensors --gradients",
                    "all gradients too; in.safetensors has d_out"},
                   {"polyhead attend --tensors qkv.safetensors -o out.safetensors --causal --top-keys 5",
                    "attention of q, k and v, without a layer"}},
      .notes =
          "Input tensors with --parameters: query [.., T, .., Eq], key and value (default: the query; the key). Without --parameters: "
          "q [*,N,T,H], k [*,K,S,H], v [*,K,S,V].\n"
          "Optional tensors: " + mask_tensors() + "; "
          "key_sets (boolean [M,S], with --key-mass), bias (added to the scores), sink (sink logits [N], or broadcasting to [*,N,T]), relative_bias.slopes (ALiBi, [N]) or "
          "relative_bias.table (T5's buckets, [N,buckets]), dropout_keep (boolean, with --dropout), d_out (with --gradients), output_weight [E,N*V] (with --weighting norm, without --parameters). For the layout torch, masks and "
          "biases may be [B*N,T,S].\n"
          "Layers of gpt2, mingpt and llama are causal unless --causal=off is given. Self-attention of t5 adds a bias for each distance: give it as "
          "the tensor bias, or the transpose of relative_attention_bias.weight as relative_bias.table.\n",
      .run = [o] { run_attend(*o); },
  };
}

}  // namespace polyhead::app
