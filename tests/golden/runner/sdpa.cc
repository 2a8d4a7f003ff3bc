#include "golden/runner/operation.h"
#include "polyhead/maps.h"

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

}  // namespace

// A case without d_out has no gradients.
Tensors compute_sdpa(Reader& in, const Setting& setting) {
  const Tensor &q = in.tensor("q"), &k = in.tensor("k"), &v = in.tensor("v"), *d_out = in.find("d_out");
  const ConstTensorView k_scale = in.view("k_scale"), v_scale = in.view("v_scale");
  SdpaOptions options{.scale = in.option<double>("scale"), .bias = in.view("bias"), .softcap = in.option<double>("softcap").value_or(0)};
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
  Tensor lengths, diagonal_offsets, query_offsets, key_offsets;
  const auto read_integers = [&](const char* name, Tensor& memory, ConstTensorView& view) {
    if (const auto given = in.option<nlohmann::json>(name)) view = memory = integer_tensor(*given);
  };
  read_integers("key_lengths", lengths, options.mask.key_lengths);
  read_integers("diagonal_offsets", diagonal_offsets, options.mask.diagonal_offsets);
  read_integers("query_offsets", query_offsets, options.mask.query_offsets);
  read_integers("key_offsets", key_offsets, options.mask.key_offsets);

  Shape map_shape = q.shape(), lse_shape = q.shape(), out_shape = q.shape();
  map_shape[-1] = k.extent(-2);
  out_shape[-1] = v.extent(-1);
  lse_shape.erase(lse_shape.size() - 1);
  Tensors results;
  const auto make = [&](const char* name, const Shape& shape) -> Tensor& { return results[name] = Tensor(q.dtype(), shape); };
  Tensor& out = make("out", out_shape);
  Tensor& lse = results["lse"] = Tensor(accumulation_dtype(q.dtype()), lse_shape);
  sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .k_scale = k_scale, .v_scale = v_scale}, options);
  attention_map({.q = q, .k = k, .k_scale = k_scale}, make("weights", map_shape), options);
  if (d_out == nullptr) return results;
  SdpaBackward backward{.q = q,
                        .k = k,
                        .v = v,
                        .out = out,
                        .lse = lse,
                        .d_out = *d_out,
                        .d_q = make("d_q", q.shape()),
                        .d_k = make("d_k", k.shape()),
                        .d_v = make("d_v", v.shape())};
  if (options.bias) backward.d_bias = make("d_bias", options.bias.shape());
  for (const auto& [name, parameter] : {std::pair("d_relative_bias.slopes", options.relative_bias.slopes), std::pair("d_relative_bias.table", options.relative_bias.table)}) {
    if (parameter) backward.d_relative_bias = make(name, parameter.shape());
  }
  if (options.sink) backward.d_sink = make("d_sink", options.sink.shape());
  sdpa_backward(backward, options);
  return results;
}

}  // namespace polyhead::golden
