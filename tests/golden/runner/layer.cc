#include "golden/runner/operation.h"
#include "polyhead/models/attention_layer.h"

namespace polyhead::golden {
namespace {

// `layer` is the name of a layer in a file's metadata. Returns the name of its parameter layout (polyhead/io/attention_parameters.h).
std::string layout_of(const std::string& layer) {
  static const std::map<std::string, std::string> kLayouts{
      {"Multi_atten", "multi_atten"},
      {"self_attention_single_head", "single_head"},
      {"cross_attention_single_head", "single_head"},
      {"cross_attention_unequal_widths", "single_head"},
      {"MultiHeadAttention(input_dim,num_heads,dim_qk,dim_v)", "multi_head_dim_qk_dim_v"},
      {"MultiHeadAttention(key_size,query_size,value_size,num_hiddens,num_heads)", "d2l"},
      {"MultiHeadAttention(c_in,c,N_head,attn_dim,gated,is_global,use_bias_for_embeddings)", "alphafold"},
      {"torch.nn.MultiheadAttention", "torch"},
  };
  const auto found = kLayouts.find(layer);
  require(found != kLayouts.end(), "the runner does not know the layer '", layer, "'");
  return found->second;
}

template <class T>
void require_option(Reader& in, const char* key, const T& actual) {
  const std::optional<T> given = in.option<T>(key);
  require(!given || *given == actual, "the metadata says ", key, " = ", given.value_or(actual), ", the parameters say ", actual);
}

struct Loaded {
  nn::MultiHeadAttention layer;
  std::vector<std::string> names;  // names of the parameters in the file
};

Loaded load_layer(Reader& in, const std::string& layout) {
  nn::MultiHeadAttentionConfig settings;
  settings.axis = in.option<int>("axis").value_or(-2);
  settings.add_zero_attn = in.option<bool>("add_zero_attn").value_or(false);
  settings.dropout = in.option<double>("dropout").value_or(0);
  io::TensorFile file;
  file.path = "parameters";
  file.tensors = in.rest();
  std::vector<std::string> names;
  for (const io::NamedTensor& named : file.tensors) names.push_back(named.name);
  io::AttentionParameters parameters = io::load_attention(file, {.layout = layout, .heads = in.required<std::int64_t>("heads")});
  parameters.empty_rows = read_empty_rows(in);
  nn::MultiHeadAttention layer = models::attention_layer(std::move(parameters), settings);

  const nn::MultiHeadAttentionConfig& c = layer.config;
  require_option<std::int64_t>(in, "qk_head_dim", c.head_width);
  require_option<std::int64_t>(in, "v_head_dim", c.value_head_width);
  require_option<std::int64_t>(in, "kdim", c.key_width);
  require_option<std::int64_t>(in, "vdim", c.value_width);
  require_option<bool>(in, "output_projection", c.output == nn::OutputProjection::linear);
  require_option<bool>(in, "bias", c.bias);
  require_option<bool>(in, "use_bias_for_embeddings", c.bias);
  require_option<bool>(in, "gated", c.gate == nn::Gate::sigmoid);
  require_option<bool>(in, "is_global", c.global_query != nn::GlobalQuery::off);
  require_option<bool>(in, "add_bias_kv", c.add_bias_kv);
  return {std::move(layer), std::move(names)};
}

}  // namespace

Tensors compute_layer(Reader& in, const Setting& setting) {
  const nn::AttentionInput input{.query = in.tensor("query"), .key = in.view("key"), .value = in.view("value")};
  const Tensor& d_out = in.tensor("d_out");
  nn::AttentionOptions options{.bias = in.view("bias"), .dropout_keep = in.view("dropout_keep"), .backend = setting.backend};
  options.mode = options.dropout_keep ? nn::Mode::training : nn::Mode::evaluation;
  options.mask = {.block = in.view("block"), .attend_keys = in.view("attend_keys"), .block_keys = in.view("block_keys")};
  options.mask_like_input = false;
  Tensor lengths;
  if (const auto given = in.option<nlohmann::json>("valid_lens")) options.mask.key_lengths = lengths = integer_tensor(*given);
  const std::string layout = layout_of(in.required<std::string>("layer"));
  const Loaded loaded = load_layer(in, layout);
  const nn::MultiHeadAttention& layer = loaded.layer;
  require((layer.config.dropout > 0) == static_cast<bool>(options.dropout_keep), "dropout and dropout_keep go together");

  Tensors results;
  const auto make = [&](const std::string& name, const Shape& shape) -> Tensor& { return results[name] = Tensor(d_out.dtype(), shape); };
  nn::MultiHeadAttention parameters = nn::zeros_like(layer);
  nn::MultiHeadAttention::Gradients gradients{.query = make("d_query", input.query.shape()), .parameters = &parameters};
  if (input.key) gradients.key = make("d_key", input.key.shape());
  if (input.value) gradients.value = make("d_value", input.value.shape());
  // In the files masks are [*,T,S], and biases are [N,T,S] or have only the first leading dimensions. Insert the missing dimensions: for masks before T, for biases
  // before N.
  const int rank = input.query.rank() + 1;
  if (options.mask.block && options.mask.block.rank() == rank - 1) options.mask.block = options.mask.block.unsqueeze(-3);
  if (options.bias) {
    gradients.bias = make("d_bias", options.bias.shape());
    const auto all_dimensions = [&](auto& bias) {
      if (layout == "torch" && bias.rank() == 3) bias = bias.unflatten(0, {input.query.extent(0), layer.config.heads});  // [B*N,T,S]
      while (bias.rank() > 2 && bias.rank() < rank) bias = bias.unsqueeze(bias.rank() - 3);
    };
    all_dimensions(options.bias);
    all_dimensions(gradients.bias);
  }

  nn::MultiHeadAttention::Saved saved;
  layer.forward(input, make("out", layer.output_shape(input)), options, &saved);
  attention_map(saved.maps(), make("weights", layer.maps_shape(input)), saved.sdpa);
  results["lse"] = saved.lse;
  results["q_heads"] = Tensor::copy_of(saved.q_heads);  // error bounds are computed from the projected queries and keys
  results["k_heads"] = Tensor::copy_of(saved.k_heads);
  layer.backward(saved, d_out, gradients);
  for (io::NamedTensor& named : io::store_attention(models::attention_parameters(parameters, layout))) {
    results["d_" + named.name] = std::move(named.tensor);
  }
  for (const std::string& name : loaded.names) {
    require(results.count("d_" + name) > 0, "the file has a tensor '", name, "', which is no parameter of the layer");
  }
  return results;
}

}  // namespace polyhead::golden
