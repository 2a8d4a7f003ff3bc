#include "polyhead/models/sequence_to_sequence_model.h"

#include <utility>

#include "core/text.h"
#include "models/model_parts.h"
#include "nn/check.h"
#include "nn/initialiser.h"
#include "polyhead/nn/activation.h"

namespace polyhead::models {
namespace {

constexpr const char *kEncode = "SequenceToSequenceModel.encode", *kDecode = "SequenceToSequenceModel.decode";

// The sizes of ids [*,T].
struct Text {
  Shape ids, lead;
  std::int64_t tokens = 0;
};

Text checked_text(const char* operation, ConstTensorView ids) {
  require(static_cast<bool>(ids), operation, ": ids are missing");
  require(ids.rank() >= 1, operation, ": ids is ", ids.shape(), "; it must be [*,T]");
  return {.ids = ids.shape(), .lead = ids.shape().first(ids.rank() - 1), .tokens = ids.extent(-1)};
}

void require_positions(const char* operation, std::int64_t tokens, std::int64_t positions) {
  require(positions == 0 || tokens <= positions, operation, ": the text has ", tokens, " tokens; the model has positions for ", positions);
}

// Returns the shape of an output that covers all layers of a stack.
Shape of_layers(std::int64_t layers, const Shape& lead, std::initializer_list<std::int64_t> rest) { return with_leading(appended(lead, rest), layers); }

// Computes the input [*,T,E] of the first layer of the encoder or the decoder. `first`: with a cache, the number of tokens of each sequence before this call.
Tensor embedded(const SequenceToSequenceConfig& config, const nn::Embedding& words, const nn::Embedding& positions, const nn::Norm& norm, ConstTensorView ids, std::span<const std::int64_t> first,
                const nn::RunOptions& run) {
  const auto like = [&] { return uninitialised(config.encoder.dtype, appended(ids.shape(), {config.encoder.width}), run.workspace); };
  Tensor x = like();
  words.forward(ids, x, {.executor = run.executor});
  if (config.embedding_scale != 1) scale(x, config.embedding_scale, run.executor);
  if (positions.weight) add_positions(positions, ids.shape(), first, config.position_offset, x, run.executor);
  if (!norm.weight) return x;
  Tensor normed = like();
  norm.forward(x, normed, run);
  return normed;
}

// x [*,F,in] -> [*,ceil(F / stride),out]. Position s of the result is the linear layer applied to x at stride s - 1, stride s and stride s + 1,
// concatenated; x is 0 beyond its ends.
Tensor convolve(const nn::Linear& kernel, ConstTensorView x, std::int64_t stride, const nn::RunOptions& run) {
  const std::int64_t length = x.extent(-2), in = x.extent(-1), count = (length + stride - 1) / stride;
  Shape padded_shape = x.shape();
  padded_shape[-2] = length + 2;
  Tensor padded = uninitialised(x.dtype(), padded_shape, run.workspace);
  copy(x, padded.view().slice(-2, 1, length + 1));
  for (const std::int64_t end : {std::int64_t{0}, length + 1}) fill(padded.view().select(-2, end), 0);
  Shape windows = x.shape();
  windows[-2] = count, windows[-1] = 3 * in;
  Shape strides = padded.view().strides();
  strides[-2] = stride * in;
  Shape result = x.shape();
  result[-2] = count, result[-1] = kernel.out_width();
  Tensor y = uninitialised(x.dtype(), result, run.workspace);
  kernel.forward(ConstTensorView(padded.view().data(), x.dtype(), windows, strides), y, run);
  return y;
}

// Computes the input [*,S,E] of the first layer from features of sound [*,M,F]; `ids` is the shape [*,S].
Tensor heard(const SequenceToSequenceModel& model, ConstTensorView features, const Shape& ids, const nn::RunOptions& run) {
  const auto convolved = [&](const nn::Linear& kernel, ConstTensorView x, std::int64_t stride) {
    Tensor y = convolve(kernel, x, stride, run);
    nn::activate(nn::Activation::gelu, y, y, run.executor);
    return y;
  };
  const Tensor frames = Tensor::copy_of(features.transpose(-1, -2), model.config.encoder.dtype), half = convolved(model.convolution1, frames, 1);
  Tensor x = convolved(model.convolution2, half, 2);
  add_positions(model.source_positions, ids, {}, model.config.position_offset, x, run.executor);
  return x;
}

// Returns the sizes of a source. Error if features are given to a model that reads ids, or ids to a model that reads features, or if a shape does not fit.
Text checked_source(const SequenceToSequenceConfig& config, const SourceInput& input) {
  if (config.features == 0) {
    require(!input.features, kEncode, ": features are given; models of the type ", config.family, " read ids");
    Text text = checked_text(kEncode, input.ids);
    require_positions(kEncode, text.tokens, config.source_positions);
    if (input.attend_keys) nn::require_exactly(kEncode, {"attend_keys", input.attend_keys}, text.ids, DType::boolean);
    return text;
  }
  require(!input.ids, kEncode, ": ids are given; models of the type ", config.family, " read features of sound");
  require(!input.attend_keys, kEncode, ": attend_keys is given; models of the type ", config.family, " read all features, which are padded to ", 2 * config.source_positions, " frames");
  require(static_cast<bool>(input.features), kEncode, ": features are missing");
  const Shape& shape = input.features.shape();
  require(shape.size() >= 2 && shape[-2] == config.features && shape[-1] == 2 * config.source_positions && is_floating(input.features.dtype()), kEncode, ": features is ", input.features.dtype(),
          " ", shape, "; it must be floating [*,", config.features, ",", 2 * config.source_positions, "]");
  const Shape lead = shape.first(shape.size() - 2);
  return {.ids = appended(lead, {config.source_positions}), .lead = lead, .tokens = config.source_positions};
}

// Returns the relative bias of a self-attention with a table [buckets,N]; no bias if there is no table.
RelativeBias by_distance(const Tensor& table, bool bidirectional, std::int64_t max_distance) {
  if (!table) return {};
  return {.table = table.view().transpose(0, 1), .bidirectional = bidirectional, .max_distance = max_distance};
}

// Writes the logits [..,C] of hidden states [..,E].
void write_logits(const SequenceToSequenceModel& model, ConstTensorView hidden, TensorView logits, const nn::RunOptions& run) {
  if (!logits) return;
  const DType dtype = model.config.encoder.dtype;
  Tensor scaled, own = logits.dtype() == dtype ? Tensor() : uninitialised(dtype, logits.shape(), run.workspace);
  if (model.config.output_scale != 1) {
    scaled = Tensor::copy_of(hidden);
    scale(scaled, model.config.output_scale, run.executor);
    hidden = scaled;
  }
  const Tensor& words = model.target_embedding.weight ? model.target_embedding.weight : model.source_embedding.weight;
  const nn::Linear output(shared(model.output.weight ? model.output.weight : words), shared(model.output_bias));
  output.forward(hidden, own ? own.view() : logits, run);
  if (own) copy(own, logits);
}

}  // namespace

SequenceToSequenceModel::SequenceToSequenceModel(const SequenceToSequenceConfig& given) : config(given) {
  constexpr const char* kName = "SequenceToSequenceModel";
  require(config.encoder.width == config.decoder.width && config.encoder.dtype == config.decoder.dtype, kName, ": the encoder is ", config.encoder.width, " wide and ", config.encoder.dtype,
          ", the decoder ", config.decoder.width, " and ", config.decoder.dtype, "; both must be the same");
  if (config.target_vocabulary == 0) config.target_vocabulary = config.vocabulary;
  require(config.vocabulary >= 1 && config.target_vocabulary >= 1, kName, ": vocabulary is ", config.vocabulary, " and target_vocabulary ", config.target_vocabulary, "; both must be at least 1");
  require(!config.shared_embedding || config.vocabulary == config.target_vocabulary, kName, ": vocabulary is ", config.vocabulary, " and target_vocabulary ", config.target_vocabulary, "; with shared_embedding both must be equal");
  const std::int64_t width = config.encoder.width;
  const DType dtype = config.encoder.dtype;
  nn::Initialiser initialiser(config.encoder.seed);
  const auto table = [&](std::int64_t rows, std::int64_t columns) {
    Tensor weight(dtype, {rows, columns});
    initialiser.normal(weight, 0, 0.02);
    return weight;
  };
  const auto norm = [&] { return config.embedding_norm ? nn::Norm({.width = width, .kind = config.encoder.norm, .epsilon = config.encoder.epsilon, .dtype = dtype}) : nn::Norm(); };
  require(config.features == 0 || (!config.shared_embedding && config.source_positions > 0), kName, ": a model of sound (features > 0) needs source_positions, and shared_embedding must be false");
  if (config.features > 0) {
    convolution1 = nn::Linear({.in_width = 3 * config.features, .out_width = width, .dtype = dtype, .seed = initialiser.child_seed()});
    convolution2 = nn::Linear({.in_width = 3 * width, .out_width = width, .dtype = dtype, .seed = initialiser.child_seed()});
  } else {
    source_embedding = nn::Embedding(table(config.vocabulary, width));
  }
  if (!config.shared_embedding) target_embedding = nn::Embedding(table(config.target_vocabulary, width));
  if (config.source_positions > 0) source_positions = nn::Embedding(table(config.position_offset + config.source_positions, width));
  if (config.target_positions > 0) target_positions = nn::Embedding(table(config.position_offset + config.target_positions, width));
  source_norm = norm(), target_norm = norm();
  if (config.buckets > 0) encoder_bias = table(config.buckets, config.encoder.heads), decoder_bias = table(config.buckets, config.decoder.heads);
  config.decoder.seed = initialiser.child_seed();
  encoder = nn::Encoder(config.encoder, config.encoder_layers);
  decoder = nn::Decoder(config.decoder, config.decoder_layers);
  for (nn::EncoderLayer& layer : encoder.layers) layer.attention.config.scale = config.attention_scale;
  for (nn::DecoderLayer& layer : decoder.layers) layer.self_attention.config.scale = layer.cross_attention.config.scale = config.attention_scale;
  if (!config.tied_output) output = nn::Linear(table(config.target_vocabulary, width), Tensor());
}

nn::DecoderCache SequenceToSequenceModel::cache(ConstTensorView memory, std::int64_t capacity, ConstTensorView attend_memory, std::optional<DType> dtype, const nn::RunOptions& options) const {
  return {decoder, memory, {.capacity = capacity, .memory_mask = {.attend_keys = attend_memory}, .dtype = dtype}, options};
}

void SequenceToSequenceModel::encode(const SourceInput& input, const SourceOutput& outputs, const SequenceToSequenceOptions& options) const {
  require(options.cache == nullptr, kEncode, ": a cache is for decode()");
  const Text text = checked_source(config, input);
  const std::int64_t layers = config.encoder_layers, width = config.encoder.width;
  const WantedOutput all[] = {{{"memory", outputs.memory}, appended(text.ids, {width})},
                              {{"all_hidden", outputs.all_hidden}, of_layers(layers + 1, text.ids, {width})},
                              {{"attentions", outputs.attentions}, of_layers(layers, text.lead, {config.encoder.heads, text.tokens, text.tokens})}};
  const Operand read[] = {{"ids", input.ids}, {"features", input.features}, {"attend_keys", input.attend_keys}};
  require_wanted(kEncode, all, read, *this);
  const Workspace own;  // lets layers reuse memory if the caller gives no workspace
  const nn::RunOptions run{options.executor, options.workspace != nullptr ? options.workspace : &own};
  const nn::AttentionOptions attention{.mask = {.attend_keys = input.attend_keys}, .relative_bias = by_distance(encoder_bias, true, config.max_distance),
                                       .backend = options.backend, .executor = run.executor, .workspace = run.workspace};
  Tensor x = config.features > 0 ? heard(*this, input.features, text.ids, run) : embedded(config, source_embedding, source_positions, source_norm, input.ids, {}, run);
  x = through_encoder(encoder, encoder.final_norm, std::move(x), {.all_hidden = outputs.all_hidden, .attentions = outputs.attentions}, run, [&](std::int64_t) { return attention; });
  if (outputs.memory) copy(x, outputs.memory);
}

void SequenceToSequenceModel::decode(const TargetInput& input, const TargetOutput& outputs, const SequenceToSequenceOptions& options) const {
  const Text text = checked_text(kDecode, input.ids);
  const bool cached = options.cache != nullptr;
  const std::int64_t layers = config.decoder_layers, width = config.decoder.width, heads = config.decoder.heads, tokens = text.tokens;
  std::vector<std::int64_t> first;
  std::int64_t longest = tokens, keys = 0;
  if (cached) {
    const std::int64_t sequences = options.cache->sequences();
    require(!input.memory && !input.attend_memory, kDecode, ": a memory is given; the cache has one");
    require(!input.attend_keys, kDecode, ": attend_keys cannot be combined with a cache");
    require(!outputs.all_hidden && !outputs.attentions && !outputs.cross_attentions, kDecode,
            ": all_hidden, attentions and cross_attentions cannot be combined with a cache: a call then computes the new tokens only. Compute the whole text without a cache");
    require(text.lead == Shape{sequences}, kDecode, ": ids is ", text.ids, "; the cache has ", sequences, " sequences, so it must be [", sequences, ",T]");
    first = integers(options.cache->key_lengths());
    for (const std::int64_t before : first) longest = std::max(longest, before + tokens);
  } else {
    require(static_cast<bool>(input.memory), kDecode, ": memory is missing");
    require(input.memory.rank() == text.ids.size() + 1, kDecode, ": memory is ", input.memory.shape(), " and ids ", text.ids, "; they must be [*,S,E] and [*,T]");
    keys = input.memory.extent(-2);
    const Shape rows = appended(text.lead, {keys});
    nn::require_exactly(kDecode, {"memory", input.memory}, appended(rows, {width}), config.decoder.dtype);
    if (input.attend_memory) nn::require_exactly(kDecode, {"attend_memory", input.attend_memory}, rows, DType::boolean);
    if (input.attend_keys) nn::require_exactly(kDecode, {"attend_keys", input.attend_keys}, text.ids, DType::boolean);
  }
  require_positions(kDecode, longest, config.target_positions);
  const WantedOutput all[] = {{{"logits", outputs.logits}, appended(text.ids, {config.target_vocabulary})},
                              {{"next_logits", outputs.next_logits}, appended(text.lead, {config.target_vocabulary})},
                              {{"hidden", outputs.hidden}, appended(text.ids, {width})},
                              {{"all_hidden", outputs.all_hidden}, of_layers(layers + 1, text.ids, {width})},
                              {{"attentions", outputs.attentions}, of_layers(layers, text.lead, {heads, tokens, tokens})},
                              {{"cross_attentions", outputs.cross_attentions}, of_layers(layers, text.lead, {heads, tokens, keys})}};
  const Operand read[] = {{"ids", input.ids}, {"attend_keys", input.attend_keys}, {"memory", input.memory}, {"attend_memory", input.attend_memory}};
  require_wanted(kDecode, all, read, *this);
  if (outputs.next_logits) {
    require(!input.attend_keys, kDecode, ": next_logits cannot be combined with attend_keys: a mask does not tell which token is the last of a sequence. Take a row of logits");
    require(tokens > 0, kDecode, ": next_logits needs at least one token; ids is ", text.ids);
  }
  const Workspace own;
  const nn::RunOptions run{options.executor, options.workspace != nullptr ? options.workspace : &own};
  const nn::AttentionOptions attention{.mask = {.causal = Causal::top_left(), .attend_keys = input.attend_keys}, .relative_bias = by_distance(decoder_bias, false, config.max_distance),
                                       .backend = options.backend, .executor = run.executor, .workspace = run.workspace};
  Tensor x = embedded(config, target_embedding.weight ? target_embedding : source_embedding, target_positions, target_norm, input.ids, first, run);
  if (cached) {
    Tensor y = uninitialised(x.dtype(), x.shape(), run.workspace);
    decoder.forward(x, y, *options.cache, attention);
    x = std::move(y);
  } else {
    const nn::DecoderOptions of_layer{.attention = attention, .memory_mask = {.attend_keys = input.attend_memory}};
    const LayerOutputs of_self{.attentions = outputs.attentions}, of_cross{.attentions = outputs.cross_attentions};
    x = through_layers(layers, decoder.final_norm, std::move(x), outputs.all_hidden, run, [&](std::int64_t i, const Tensor& in, Tensor& out) {
      nn::DecoderLayer::Saved saved;
      decoder.layers[static_cast<std::size_t>(i)].forward(in, input.memory, out, of_layer, of_self.of_heads() || of_cross.of_heads() ? &saved : nullptr);
      of_self.write(saved.self_attention, i, run.executor);
      of_cross.write(saved.cross_attention, i, run.executor);
    });
  }
  try {
    if (outputs.hidden) copy(x, outputs.hidden);
    write_logits(*this, x, outputs.logits, run);
    if (outputs.next_logits) {
      const Tensor last = Tensor::copy_of(x.view().select(-2, tokens - 1));
      write_logits(*this, last, outputs.next_logits, run);
    }
  } catch (...) {
    if (cached) options.cache->truncate(first);
    throw;
  }
}

}  // namespace polyhead::models
