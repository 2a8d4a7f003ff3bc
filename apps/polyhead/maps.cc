#include <array>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "attention_rules.h"
#include "core/index.h"
#include "format.h"
#include "input_tensors.h"
#include "map_results.h"
#include "output_path.h"
#include "parser.h"
#include "polyhead/maps.h"
#include "results.h"
#include "score_inputs.h"

namespace polyhead::app {
namespace {

struct MapsOptions {
  AttentionRules rules;
  std::string tensors, output;
  MapResults maps;
  double residual = 0.5;
  bool rollout = false, json = false;
};

void check(const MapsOptions& o) {
  if (!o.rollout && !o.maps.any())
    throw UsageError("no result is chosen; give one or more of --attention-weights, --map-window, --top-keys, --pooled-map, --key-mass, --key-sums, --statistics and "
                     "--divergence, or --rollout");
  if (o.rollout && o.maps.any()) throw UsageError("--rollout cannot be combined with other results, because --rollout reads q and k of several layers");
  if (o.rollout && o.maps.by_norms) throw UsageError("--weighting norm cannot be combined with --rollout, which multiplies attention weights");
  if (o.rollout && o.maps.keys) throw UsageError("--keys cannot be combined with --rollout: rows of the rollout have all keys");
  if (!o.rollout) check_map_results(o.maps);
  check_tensor_format("--output", o.output);
  check_not_input(o.output, std::array{o.tensors});
  check_writable(o.output);
}

void append_rollout(const MapsOptions& o, const ScoreInputs& scores, Results* results) {
  const std::int64_t count = scores.q.extent(0), positions = scores.q.extent(-2);
  require(count > 0 && scores.k.extent(0) == count, "maps: q is ", scores.q.shape(), ", k ", scores.k.shape(), "; with --rollout the first dimension is the layer, and must be the same for q and k");
  std::vector<MapsInput> layers;
  for (std::int64_t l = 0; l < count; ++l) layers.push_back({.q = scores.q.view().select(0, l), .k = scores.k.view().select(0, l)});
  layers.front().progress = progress_bar("layers");
  const std::vector<std::int64_t> rows = indices(o.maps.rows.value_or(IndexList{{}}), positions, "--rows", "row");
  Tensor out(accumulation_dtype(scores.q.dtype()), appended(layers.front().q.shape().first(layers.front().q.rank() - 3), {std::ssize(rows), positions}));
  attention_rollout(layers, rows, out, scores.options, o.residual);
  results->push_back({"rollout", std::move(out)});
}

void run_maps(const MapsOptions& o) {
  check(o);
  InputTensors in(o.tensors);
  const ScoreInputs scores(&in, o.rules, "maps", "which maps are computed from", o.rollout);
  Results results;
  if (o.rollout) {
    append_rollout(o, scores, &results);
  } else {
    Shape shape = scores.q.shape();
    shape[-1] = scores.k.extent(-2);
    Tensor norms;
    if (o.maps.by_norms) {
      const DType dtype = accumulation_dtype(scores.q.dtype());
      const Tensor v = in.as(in.required("v", "whose norms --weighting norm needs"), "v", dtype, "of q"), weight = in.as(in.required("output_weight", kOutputWeight), "output_weight", dtype, "of q");
      norms = norms_of_values(v, weight, scores.q.shape());
    }
    append_map_results(o.maps, {.q = scores.q, .k = scores.k}, scores.options, shape, {}, norms, &in, &results);
  }
  in.report_unused({"q", "k"}, std::array<std::string, 2>{"v", "output_weight"});
  io::save_tensors(o.output, results);
  report(o.rollout ? cat("attention rollout of ", counted(scores.q.extent(0), "layer")) : "attention maps", o.output, results, o.json);
}

}  // namespace

Subcommand declare_maps(Parser& parser) {
  const auto o = std::make_shared<MapsOptions>();
  parser.add_option("--tensors", o->tensors, "the input tensors q and k, and those listed below")->type_name("FILE")->required();
  parser.add_option("-o,--output", o->output, "write the results to this file, .safetensors or .npz")->type_name("FILE")->required();
  add_map_results(parser, &o->maps, false);
  Option* rollout = parser.add_flag("--rollout", o->rollout,
                                         "write rollout [*,T,T], or only the rows that --rows lists: how much each input position contributes to a position after all layers, if only attention and the "
                                         "residual connection mix positions; q is [L,*,N,T,H], k [L,*,K,T,H], the first layer first");
  add_value(parser, "--residual", &o->residual, read_number, "X", "share of the residual connection in --rollout, from 0 to 1 (default: 0.5)")->needs(rollout);
  Option* dropout = add_attention_rules(parser, &o->rules);
  parser.remove(parser.find("--dropout-seed"));  // maps show attention weights before dropout
  parser.remove(dropout);
  add_key_bounds(parser, &o->rules);
  add_relative_bias(parser, &o->rules);
  parser.add_flag("--json", o->json, "machine-readable: {\"operation\", \"output\", \"tensors\": [{\"name\", \"dtype\", \"shape\"}, ...]}");
  return {
      .examples = {{"polyhead maps --tensors qk.safetensors -o maps.safetensors --causal --statistics --top-keys 16", "statistics of each head, and the strongest keys of each query"},
                   {"polyhead maps --tensors qk.safetensors -o maps.safetensors --attention-weights --rows 0:64 --keys 128:192", "a rectangle of every map"},
                   {"polyhead maps --tensors qk.safetensors -o maps.safetensors --map-window -2,0 --key-mass \"0;5:8\"",
                    "the attention weights of the two previous keys and of the key at the query's own position; the sums over key 0, and over keys 5 to 7"},
                   {"polyhead maps --tensors long.safetensors -o maps.npz --pooled-map 512,512 --pooling largest", "a long map as 512 x 512 blocks"},
                   {"polyhead maps --tensors layers.safetensors -o maps.safetensors --rollout --rows 0", "what position 0 is made of after all layers"}},
      .notes =
          "Input tensors: q [*,N,T,H], k [*,K,S,H]. Optional: " + mask_tensors() + "; "
          "bias (added to the scores), sink (sink logits [N], or broadcasting to [*,N,T]), "
          "relative_bias.slopes (ALiBi, [N]) or relative_bias.table (T5's buckets, [N,buckets]), key_sets (boolean [M,S], with --key-mass), v and output_weight (with --weighting norm). With --rollout the optional tensors are the same for all layers.\n"
          "Every result except attention_weights and the rollout of all rows is computed in O(T + S) memory besides the result itself. A terminal shows a progress bar.\n",
      .run = [o] { run_maps(*o); },
  };
}

}  // namespace polyhead::app
