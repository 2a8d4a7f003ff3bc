#include <string>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "models/checkpoint.h"
#include "models/sequence_families.h"
#include "polyhead/models/sequence_to_sequence_model.h"
#include "polyhead/nn/positions.h"

namespace polyhead::models {
namespace {

// Returns Marian's table [positions,E]: nn::sinusoidal_positions() with all sines before all cosines. If the width is odd, there is one more sine than cosines.
Tensor sinusoidal_halves(DType dtype, const Shape& shape) {
  Tensor interleaved(dtype, shape), halves(dtype, shape);
  nn::sinusoidal_positions(interleaved);
  const std::int64_t width = shape[1], sines = (width + 1) / 2;
  for (std::int64_t i = 0; i < width; ++i) copy(interleaved.view().select(1, i), halves.view().select(1, i % 2 == 0 ? i / 2 : sines + i / 2));
  return halves;
}

// Takes the tensors of a folder, by the names of the family and the sizes of the config.
struct Source {
  Checkpoint file;
  const SequenceFamily& family;
  const SequenceToSequenceConfig& config;

  nn::Linear linear(const std::string& name, std::int64_t out, std::int64_t in) { return file.linear(name, out, in, family.bias); }

  nn::Norm norm(const std::string& name) {
    const nn::LayerConfig& layer = config.encoder;
    Tensor weight = file.take(name + ".weight", {layer.width});
    if (layer.norm == nn::NormKind::rms_norm) return nn::RMSNorm(std::move(weight), layer.epsilon);
    return nn::LayerNorm(std::move(weight), file.take(name + ".bias", {layer.width}), layer.epsilon);
  }

  // Takes a norm's tensors from the file. The norm is absent if the family has no name for it.
  nn::Norm norm_if_any(const std::string& before, std::string_view name) { return name.empty() ? nn::Norm() : norm(cat(before, name)); }

  template <class Layer>
  nn::MultiHeadAttention attention(const std::string& prefix, const Layer& layer) {
    const SequenceTensors& names = family.tensors;
    const std::int64_t inner = layer.heads * layer.head_width;
    nn::Linear q = linear(cat(prefix, names.q), inner, layer.width), v = linear(cat(prefix, names.v), inner, layer.width);
    nn::Linear k = file.linear(cat(prefix, names.k), inner, layer.width, family.bias && family.key_bias);
    if (layer.bias && !k.bias) k.bias = Tensor(layer.dtype, {inner});  // a bias of zeros, because a layer's projections either all have a bias or all have none
    nn::Linear output = linear(cat(prefix, names.attention_output), layer.width, inner);
    return nn::make_attention(attention_of(layer), std::move(q), std::move(k), std::move(v), std::move(output));
  }

  template <class Layer>
  nn::MultiHeadAttentionConfig attention_of(const Layer& layer) const {
    return {.query_width = layer.width, .heads = layer.heads, .head_width = layer.head_width, .bias = layer.bias, .output_bias = layer.output_bias, .scale = config.attention_scale, .dtype = layer.dtype};
  }

  template <class Layer>
  nn::FeedForward feed_forward(const std::string& prefix, const Layer& layer) {
    const SequenceTensors& names = family.tensors;
    const auto in = [&](std::string_view name) { return linear(cat(prefix, name), layer.hidden_width, layer.width); };
    nn::Linear gate = layer.gated ? in(names.gate) : nn::Linear(), hidden = in(layer.gated ? names.gated_hidden : names.hidden);
    return {std::move(hidden), linear(cat(prefix, names.feed_forward_output), layer.width, layer.hidden_width), layer.activation, std::move(gate)};
  }

  nn::EncoderLayer encoder_layer(const std::string& prefix) {
    const SequenceTensors& names = family.tensors;
    nn::EncoderLayer layer;
    layer.attention = attention(cat(prefix, names.self_attention), config.encoder);
    layer.attention_norm = norm(cat(prefix, names.self_attention_norm));
    layer.feed_forward = feed_forward(cat(prefix, names.encoder_feed_forward), config.encoder);
    layer.feed_forward_norm = norm(cat(prefix, names.encoder_feed_forward_norm));
    layer.norm_position = family.norm_position;
    return layer;
  }

  nn::DecoderLayer decoder_layer(const std::string& prefix) {
    const SequenceTensors& names = family.tensors;
    nn::DecoderLayer layer;
    layer.self_attention = attention(cat(prefix, names.self_attention), config.decoder);
    layer.self_attention_norm = norm(cat(prefix, names.self_attention_norm));
    layer.cross_attention = attention(cat(prefix, names.cross_attention), config.decoder);
    layer.cross_attention_norm = norm(cat(prefix, names.cross_attention_norm));
    layer.feed_forward = feed_forward(cat(prefix, names.decoder_feed_forward), config.decoder);
    layer.feed_forward_norm = norm(cat(prefix, names.decoder_feed_forward_norm));
    layer.norm_position = family.norm_position;
    return layer;
  }

  // Returns a convolution over three neighbouring positions, stored [out,in,3], as a linear layer on the concatenated features of the three positions.
  nn::Linear convolution(const std::string& name, std::int64_t out, std::int64_t in) {
    const Tensor stored = file.take(name + ".weight", {out, in, 3});
    Tensor weight = Tensor::uninitialised(file.dtype(), {out, 3 * in});
    copy(stored.view().transpose(1, 2), weight.view().unflatten(1, {3, in}));
    return {std::move(weight), file.take(name + ".bias", {out})};
  }

  // Returns the table of positions of the encoder or the decoder. A table that a formula gives may be missing in the file; if the file has it, it is read, as
  // in transformers.
  nn::Embedding positions(const std::string& side, std::int64_t count) {
    if (family.positions == SequencePositions::relative) return {};
    const std::string name = cat(side, family.tensors.positions, ".weight");
    const Shape shape{config.position_offset + count, config.encoder.width};
    if (family.positions == SequencePositions::sinusoidal && file.find(name) == nullptr) return nn::Embedding(sinusoidal_halves(file.dtype(), shape));
    return nn::Embedding(file.take(name, shape));
  }

  Tensor relative_bias(const std::string& side, std::int64_t heads) {
    const SequenceTensors& names = family.tensors;
    if (names.relative_bias.empty()) return {};
    return file.take(cat(side, names.layer, "0.", names.self_attention, names.relative_bias, ".weight"), {config.buckets, heads});
  }

  // Accepts a tensor that is an embedding under another name, if it has the same bits.
  void ignore_copy(const std::string& name, const Tensor& words) {
    if (file.find(name) == nullptr) return;
    if (!file.is_copy(name, words)) fail(ErrorCode::format, file.file_name(), ": '", name, "' differs from the embedding that it shares in models of the type ", family.model_type, " with this config.json");
    file.ignore(name);
  }
};

// Returns the names under which a file may hold the shared embedding, or the separate embeddings of encoder and decoder.
std::vector<std::string> embedding_names(const SequenceTensors& names) {
  return {std::string(names.shared), cat(names.encoder, names.words), cat(names.decoder, names.words)};
}

// Loads the output projection, unless it is the embedding.
void load_output(Source& source, bool by_file, SequenceToSequenceModel& model) {
  Checkpoint& file = source.file;
  SequenceToSequenceConfig& config = model.config;
  const std::string name = cat(source.family.tensors.output, ".weight");
  const Tensor& words = model.target_embedding.weight ? model.target_embedding.weight : model.source_embedding.weight;
  const bool there = file.find(name) != nullptr, differs = there && !file.is_copy(name, words);
  if (by_file) config.tied_output = !differs;
  if (!config.tied_output) {
    model.output = nn::Linear(file.take(name, {config.target_vocabulary, config.encoder.width}), Tensor());
  } else if (differs) {
    fail(ErrorCode::format, file.file_name(), ": '", name, "' differs from the embedding, and config.json ties them (tie_word_embeddings, which may be its default); set it to false or remove the tensor");
  } else {
    file.ignore(name);
  }
}

}  // namespace

SequenceToSequenceModel load_sequence_to_sequence_model(const std::filesystem::path& folder, const LanguageLoadOptions& options) {
  SequenceToSequenceModel model;
  SequenceConfigRead read = read_sequence_config(folder, options);
  model.config = std::move(read.config);
  SequenceToSequenceConfig& config = model.config;
  const SequenceFamily& family = find_sequence_family("config.json", config.family);
  const SequenceTensors& names = family.tensors;
  const std::vector<std::string> embeddings = embedding_names(names);
  const std::vector<std::string_view> looked_for(embeddings.begin() + (config.shared_embedding ? 0 : config.features > 0 ? 2 : 1), embeddings.end());
  Source source{Checkpoint(folder, family.model_type, names.prefix, looked_for), family, config};
  Checkpoint& file = source.file;
  config.encoder.dtype = config.decoder.dtype = file.dtype();
  const std::int64_t width = config.encoder.width;
  const auto named = [&](std::string_view name) { return cat(file.prefix(), name); };
  const std::string encoder = named(names.encoder), decoder = named(names.decoder);

  if (config.shared_embedding) {
    model.source_embedding = nn::Embedding(file.take(named(file.embedding_name()) + ".weight", {config.vocabulary, width}));
    for (const std::string& name : embeddings)
      if (name != file.embedding_name()) source.ignore_copy(named(name) + ".weight", model.source_embedding.weight);
  } else {
    if (config.features == 0) model.source_embedding = nn::Embedding(file.take(cat(encoder, names.words, ".weight"), {config.vocabulary, width}));
    model.target_embedding = nn::Embedding(file.take(cat(decoder, names.words, ".weight"), {config.target_vocabulary, width}));
  }
  if (config.features > 0) {
    model.convolution1 = source.convolution(cat(encoder, names.convolution1), width, config.features);
    model.convolution2 = source.convolution(cat(encoder, names.convolution2), width, width);
  }
  model.source_positions = source.positions(encoder, config.source_positions);
  model.target_positions = source.positions(decoder, config.target_positions);
  model.source_norm = source.norm_if_any(encoder, names.embedding_norm);
  model.target_norm = source.norm_if_any(decoder, names.embedding_norm);
  model.encoder_bias = source.relative_bias(encoder, config.encoder.heads);
  model.decoder_bias = source.relative_bias(decoder, config.decoder.heads);
  for (std::int64_t i = 0; i < config.encoder_layers; ++i) model.encoder.layers.push_back(source.encoder_layer(cat(encoder, names.layer, i, ".")));
  for (std::int64_t i = 0; i < config.decoder_layers; ++i) model.decoder.layers.push_back(source.decoder_layer(cat(decoder, names.layer, i, ".")));
  model.encoder.final_norm = source.norm_if_any(encoder, names.final_norm);
  model.decoder.final_norm = source.norm_if_any(decoder, names.final_norm);
  load_output(source, read.output_by_file, model);
  if (!names.output_bias.empty() && file.find(std::string(names.output_bias)) != nullptr) {
    const Tensor bias = file.take_rounded(std::string(names.output_bias), {1, config.target_vocabulary});
    model.output_bias = Checkpoint::part(bias, [](TensorView view) { return view.select(0, 0); });
  }
  // Older versions of transformers saved this tensor, and no version reads it.
  const std::string unused = cat(decoder, names.layer, "0.", names.cross_attention, names.relative_bias, ".weight");
  file.require_all_taken([&](std::string_view name) { return !names.relative_bias.empty() && name == unused; });
  return model;
}

}  // namespace polyhead::models
