#include "golden/runner/operation.h"
#include "polyhead/maps.h"
#include "polyhead/sdpa_derivatives.h"

namespace polyhead::golden {
namespace {

Diagonal corner(const std::string& name) {
  if (name == "top_left") return Diagonal::top_left();
  if (name == "bottom_right") return Diagonal::bottom_right();
  fail(ErrorCode::unsupported, "the runner does not know the corner '", name, "'");
}

Diagonal diagonal(const nlohmann::json& given) {
  return given.is_string() ? corner(given.get<std::string>()) : Diagonal::offset(given.get<std::int64_t>());
}

// The inputs and options of a case, and the results of the forward pass.
struct Problem {
  Problem(Reader& in, const Setting& setting);
  void forward(Tensors& results);

  const Tensor &q, &k, &v;
  ConstTensorView k_scale, v_scale;
  SdpaOptions options;
  Tensor lengths, diagonal_offsets, query_offsets, key_offsets;
};

Problem::Problem(Reader& in, const Setting& setting)
    : q(in.tensor("q")), k(in.tensor("k")), v(in.tensor("v")), k_scale(in.view("k_scale")), v_scale(in.view("v_scale")) {
  options = {.scale = in.option<double>("scale"), .bias = in.view("bias"), .softcap = in.option<double>("softcap").value_or(0)};
  options.relative_bias = {.slopes = in.view("relative_bias.slopes"), .table = in.view("relative_bias.table")};
  options.relative_bias.bidirectional = in.option<bool>("bidirectional").value_or(true);
  options.relative_bias.max_distance = in.option<std::int64_t>("max_distance").value_or(128);
  if (const auto given = in.option<nlohmann::json>("relative_diagonal")) options.relative_bias.diagonal = diagonal(*given);
  options.sink = in.view("sink");
  options.empty_rows = read_empty_rows(in);
  options.backend = setting.backend;
  options.dropout = {.p = in.option<double>("dropout").value_or(0), .keep = in.view("dropout_keep")};
  require((options.dropout.p > 0) == static_cast<bool>(options.dropout.keep), "dropout and dropout_keep go together");

  options.mask.attend = in.view("attend");
  options.mask.block = in.view("block");
  options.mask.attend_keys = in.view("attend_keys");
  options.mask.block_keys = in.view("block_keys");
  if (const auto name = in.option<std::string>("causal")) options.mask.causal = corner(*name);
  if (const auto offset = in.option<std::int64_t>("causal_offset")) {
    require(!options.mask.causal, "causal and causal_offset are both given");
    options.mask.causal = Causal::offset(*offset);
  }
  if (const auto window = in.option<std::vector<std::int64_t>>("window")) {
    require(window->size() == 2, "window must be [left, right]");
    options.mask.window = {.left = (*window)[0], .right = (*window)[1]};
  }
  const auto read_integers = [&](const char* name, Tensor& memory, ConstTensorView& view) {
    if (const auto given = in.option<nlohmann::json>(name)) view = memory = integer_tensor(*given);
  };
  read_integers("key_lengths", lengths, options.mask.key_lengths);
  read_integers("diagonal_offsets", diagonal_offsets, options.mask.diagonal_offsets);
  read_integers("query_offsets", query_offsets, options.mask.query_offsets);
  read_integers("key_offsets", key_offsets, options.mask.key_offsets);
}

void Problem::forward(Tensors& results) {
  Shape map_shape = q.shape(), lse_shape = q.shape(), out_shape = q.shape();
  map_shape[-1] = k.extent(-2);
  out_shape[-1] = v.extent(-1);
  lse_shape.erase(lse_shape.size() - 1);
  Tensor& out = results["out"] = Tensor(q.dtype(), out_shape);
  Tensor& lse = results["lse"] = Tensor(accumulation_dtype(q.dtype()), lse_shape);
  Tensor& weights = results["weights"] = Tensor(q.dtype(), map_shape);
  sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .k_scale = k_scale, .v_scale = v_scale}, options);
  attention_map({.q = q, .k = k, .k_scale = k_scale}, weights, options);
}

// Allocates in `results` the gradient of each input: d_q, d_bias, d_relative_bias.table, ... Backward is SdpaBackward or SdpaBackwardBackward.
template <class Backward>
void make_gradients(const Problem& p, Backward& backward, Tensors& results) {
  const auto make = [&](const std::string& name, ConstTensorView like) { return (results["d_" + name] = Tensor(p.q.dtype(), like.shape())).view(); };
  backward.d_q = make("q", p.q), backward.d_k = make("k", p.k), backward.d_v = make("v", p.v);
  if (p.options.bias) backward.d_bias = make("bias", p.options.bias);
  if (p.options.sink) backward.d_sink = make("sink", p.options.sink);
  const RelativeBias& relative = p.options.relative_bias;
  if (relative.slopes) backward.d_relative_bias = make("relative_bias.slopes", relative.slopes);
  if (relative.table) backward.d_relative_bias = make("relative_bias.table", relative.table);
}

}  // namespace

// Computes the forward pass and, if the case has d_out, the backward pass.
Tensors compute_sdpa(Reader& in, const Setting& setting) {
  Problem p(in, setting);
  Tensors results;
  p.forward(results);
  const Tensor* d_out = in.find("d_out");
  if (d_out == nullptr) return results;
  SdpaBackward backward{.q = p.q, .k = p.k, .v = p.v, .out = results["out"], .lse = results["lse"], .d_out = *d_out};
  make_gradients(p, backward, results);
  sdpa_backward(backward, p.options);
  return results;
}

Tensors compute_second_derivatives(Reader& in, const Setting& setting) {
  Problem p(in, setting);
  Tensors results;
  p.forward(results);
  const Tensor &out = results["out"], &lse = results["lse"], &d_out = in.tensor("d_out");
  SdpaTangents tangents{.q = in.tensor("q_tangent"), .k = in.tensor("k_tangent"), .v = in.tensor("v_tangent")};
  if (p.options.bias) tangents.bias = in.tensor("bias_tangent");
  if (p.options.sink) tangents.sink = in.tensor("sink_tangent");
  if (p.options.relative_bias.slopes) tangents.relative_bias = in.tensor("relative_bias.slopes_tangent");
  if (p.options.relative_bias.table) tangents.relative_bias = in.tensor("relative_bias.table_tangent");

  Tensor& out_tangent = results["out_tangent"] = Tensor(out.dtype(), out.shape());
  Tensor& lse_tangent = results["lse_tangent"] = Tensor(lse.dtype(), lse.shape());
  sdpa_jvp({.q = p.q, .k = p.k, .v = p.v, .out = out, .lse = lse, .tangents = tangents, .out_tangent = out_tangent, .lse_tangent = lse_tangent}, p.options);

  SdpaBackwardBackward backward{.q = p.q, .k = p.k, .v = p.v, .out = out, .lse = lse, .d_out = d_out, .d_gradients = tangents};
  make_gradients(p, backward, results);
  backward.d_d_out = results["d_d_out"] = Tensor(out.dtype(), out.shape());
  sdpa_backward_backward(backward, p.options);
  return results;
}

}  // namespace polyhead::golden
