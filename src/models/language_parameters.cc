#include <string>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "models/checkpoint.h"
#include "models/language_families.h"
#include "polyhead/models/language_model.h"

namespace polyhead::models {
namespace {

nn::Norm load_norm(Checkpoint& file, const std::string& name, const LanguageModelConfig& config) {
  const nn::LayerConfig& layer = config.layer;
  Tensor weight = file.take(name + ".weight", {layer.width});
  if (layer.norm == nn::NormKind::rms_norm) return nn::RMSNorm(std::move(weight), layer.epsilon, config.norm_weight_offset);
  return nn::LayerNorm(std::move(weight), file.take(name + ".bias", {layer.width}), layer.epsilon);
}

// Returns whether a tensor is a table that older versions of transformers saved; such tables follow from the config.
bool is_buffer(std::string_view name) {
  for (const std::string_view end : {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias"})
    if (name.ends_with(end)) return true;
  return false;
}

// Returns part i (q, k or v) of a fused projection with rows [N,3,H]: row (n, i, h) of the fused projection becomes row (n, h). The rows are copied, because no
// stride can join n and h.
nn::Linear head_rows_of(const nn::Linear& whole, std::int64_t heads, std::int64_t width, std::int64_t index) {
  const auto copy_of = [&](const Tensor& tensor, const Shape& shape) {
    if (!tensor) return Tensor();
    Tensor rows = Tensor::uninitialised(tensor.dtype(), shape);
    copy(tensor.view().unflatten(0, {heads, 3, width}).select(1, index), rows.view().unflatten(0, {heads, width}));
    return rows;
  };
  return {copy_of(whole.weight, {heads * width, whole.in_width()}), copy_of(whole.bias, {heads * width})};
}

nn::MultiHeadAttention load_attention(Checkpoint& file, const Family& family, const LanguageModelConfig& config, const std::string& prefix, std::int64_t index) {
  const nn::LayerConfig& layer = config.layer;
  const FamilyTensors& names = family.tensors;
  const auto named = [&](std::string_view name) { return cat(prefix, name); };
  const std::int64_t width = layer.width, q_rows = layer.heads * layer.head_width, k_rows = layer.kv_heads * layer.head_width;
  Checkpoint::Projections p;
  if (family.packed_by_head) {
    const nn::Linear packed = file.linear(named(names.q), q_rows + 2 * k_rows, width, layer.bias, family.transposed);
    const auto part = [&](std::int64_t i) { return head_rows_of(packed, layer.heads, layer.head_width, i); };
    p = {part(0), part(1), part(2)};
  } else {
    p = file.qkv(prefix, names, q_rows, k_rows, width, layer.bias, family.transposed);
  }
  nn::Linear output = file.linear(named(names.attention_output), width, q_rows, layer.output_bias, family.transposed);
  const auto head_norm = [&](std::string_view name) {
    return layer.qk_norm ? nn::RMSNorm(file.take(cat(prefix, name, ".weight"), {layer.head_width}), layer.epsilon, config.norm_weight_offset) : nn::RMSNorm();
  };
  nn::RMSNorm q_norm = head_norm(names.q_norm), k_norm = head_norm(names.k_norm);
  Tensor sink = config.sink ? file.take(named(names.sink), {layer.heads}) : Tensor();
  return nn::make_attention(config.attention(index), std::move(p.q), std::move(p.k), std::move(p.v), std::move(output), {}, {}, {}, std::move(sink), std::move(q_norm), std::move(k_norm));
}

// Returns a linear layer of expert `index` from tensors [experts,in,out] and [experts,out].
nn::Linear packed_linear(const Tensor& weight, const Tensor& bias, std::int64_t index) {
  return {Checkpoint::part(weight, [&](TensorView view) { return view.select(0, index).transpose(0, 1); }), Checkpoint::part(bias, [&](TensorView view) { return view.select(0, index); })};
}

// Returns a linear layer with every second output of `whole`, from output `first` on.
nn::Linear alternate_rows(const nn::Linear& whole, std::int64_t first) {
  const auto half = [&](const Tensor& tensor) {
    return Checkpoint::part(tensor, [&](TensorView view) { return view.unflatten(0, {view.extent(0) / 2, 2}).select(1, first); });
  };
  return {half(whole.weight), half(whole.bias)};
}

nn::MixtureOfExperts load_mixture(Checkpoint& file, const Family& family, const nn::MixtureOfExpertsConfig& c, const std::string& prefix) {
  const FamilyExperts& names = family.experts;
  nn::MixtureOfExperts mixture;
  mixture.chosen = c.chosen, mixture.normalise = c.normalise, mixture.clamped_gate = c.clamped_gate;
  mixture.router = file.linear(cat(prefix, names.router), c.experts, c.width, c.router_bias);
  const auto expert = [&](const std::string& at, std::int64_t hidden_width) {
    nn::Linear hidden = file.linear(cat(at, names.hidden), hidden_width, c.width, c.bias), gate = file.linear(cat(at, names.gate), hidden_width, c.width, c.bias);
    return nn::FeedForward(std::move(hidden), file.linear(cat(at, names.output), c.width, hidden_width, c.bias), c.activation, std::move(gate));
  };
  if (names.packed_input.empty()) {
    for (std::int64_t i = 0; i < c.experts; ++i) mixture.experts.push_back(expert(cat(prefix, names.expert, i, "."), c.hidden_width));
  } else {
    const Tensor input = file.take(cat(prefix, names.packed_input), {c.experts, c.width, 2 * c.hidden_width}), output = file.take(cat(prefix, names.packed_output), {c.experts, c.hidden_width, c.width});
    const Tensor input_bias = file.take(cat(prefix, names.packed_input, "_bias"), {c.experts, 2 * c.hidden_width}), output_bias = file.take(cat(prefix, names.packed_output, "_bias"), {c.experts, c.width});
    for (std::int64_t i = 0; i < c.experts; ++i) {
      const nn::Linear both = packed_linear(input, input_bias, i);
      mixture.experts.emplace_back(alternate_rows(both, 1), packed_linear(output, output_bias, i), c.activation, alternate_rows(both, 0));
    }
  }
  if (c.shared_hidden_width == 0) return mixture;
  mixture.shared = expert(cat(prefix, names.shared), c.shared_hidden_width);
  mixture.shared_gate = file.linear(cat(prefix, names.shared_gate), 1, c.width, false);
  return mixture;
}

nn::EncoderLayer load_layer(Checkpoint& file, const Family& family, const LanguageModelConfig& config, std::int64_t index) {
  const nn::LayerConfig& c = config.layer;
  const FamilyTensors& names = family.tensors;
  const std::string prefix = cat(file.prefix(), names.layer, index, ".");
  const auto named = [&](std::string_view name) { return cat(prefix, name); };
  const auto norm = [&](std::string_view name) { return name.empty() ? nn::Norm() : load_norm(file, named(name), config); };
  nn::EncoderLayer layer;
  layer.attention = load_attention(file, family, config, prefix, index);
  layer.attention_norm = norm(names.attention_norm);
  layer.attention_output_norm = norm(names.attention_output_norm);
  layer.feed_forward_norm = norm(names.feed_forward_norm);
  layer.feed_forward_output_norm = norm(names.feed_forward_output_norm);
  layer.norm_position = c.norm_position.value_or(nn::NormPosition::post);
  layer.part_order = c.part_order;
  if (const std::optional<nn::MixtureOfExpertsConfig> mixture = config.mixture(index)) {
    layer.mixture = load_mixture(file, family, *mixture, prefix);
    return layer;
  }
  nn::Linear hidden, gate;
  if (c.gated && names.hidden.empty()) {
    const nn::Linear packed = file.linear(named(names.gate), 2 * c.hidden_width, c.width, c.feed_forward_bias, family.transposed);
    gate = Checkpoint::rows_of(packed, 0, c.hidden_width), hidden = Checkpoint::rows_of(packed, c.hidden_width, 2 * c.hidden_width);
  } else {
    hidden = file.linear(named(names.hidden), c.hidden_width, c.width, c.feed_forward_bias, family.transposed);
    if (c.gated) gate = file.linear(named(names.gate), c.hidden_width, c.width, c.feed_forward_bias, family.transposed);
  }
  nn::Linear output = file.linear(named(names.feed_forward_output), c.width, c.hidden_width, c.feed_forward_bias, family.transposed);
  layer.feed_forward = nn::FeedForward(std::move(hidden), std::move(output), c.activation, std::move(gate));
  return layer;
}

// The file of a model with tied embeddings may hold an output projection too. transformers 4 ignores this projection; transformers 5 uses it if it differs from
// the embedding. So polyhead requires it to equal the embedding.
void ignore_tied_output(Checkpoint& file, const std::string& name, const Tensor& words) {
  if (file.find(name) == nullptr) return;
  if (!file.is_copy(name, words))
    fail(ErrorCode::format, file.file_name(), ": '", name, "' differs from the embedding, and config.json ties them (tie_word_embeddings, which may be its default); set it to false or remove the tensor");
  file.ignore(name);
}

}  // namespace

LanguageModel load_language_model(const std::filesystem::path& folder, const LanguageLoadOptions& options) {
  LanguageModel model;
  model.config = read_language_config(folder, options);
  LanguageModelConfig& config = model.config;
  const Family& family = find_family("config.json", config.family);
  Checkpoint file(folder, family.model_type, family.tensors.prefix, {&family.tensors.words, 1});
  const std::int64_t width = config.layer.width;
  config.layer.dtype = file.dtype();
  const auto named = [&](std::string_view name) { return cat(file.prefix(), name, ".weight"); };
  model.words = nn::Embedding(file.take(named(family.tensors.words), {config.vocabulary, width}));
  if (!config.rotary) model.positions = nn::Embedding(file.take(named(family.tensors.positions), {config.positions, width}));
  for (std::int64_t i = 0; i < config.layers; ++i) model.stack.layers.push_back(load_layer(file, family, config, i));
  model.stack.final_norm = load_norm(file, cat(file.prefix(), family.tensors.final_norm), config);
  const std::string output = cat(family.tensors.output, ".weight");
  if (config.tied_output) {
    ignore_tied_output(file, output, model.words.weight);
  } else {
    model.output = nn::Linear(file.take(output, {config.vocabulary, width}), Tensor());
  }
  file.require_all_taken(is_buffer);
  return model;
}

}  // namespace polyhead::models
