#include "polyhead/nn/encoder_decoder.h"

#include <cmath>

#include "nn/cached_attention.h"
#include "nn/check.h"
#include "nn/initialiser.h"
#include "nn/residual.h"
#include "nn/rows.h"
#include "nn/stack.h"
#include "polyhead/nn/positions.h"
#include "polyhead/nn/stack_cache.h"

namespace polyhead::nn {
namespace {

enum Part : std::uint64_t { kEncoder, kDecoder, kSource, kTarget, kOutput };  // the numbers of the model's parts, for derive_seed()

void require_ids(const char* operation, const Operand& ids) {
  require(static_cast<bool>(ids.view), operation, ": ", ids.name, " is missing");
  require(ids.view.rank() == 2, operation, ": ", ids.name, " is ", ids.view.shape(), "; it must be ids [sequences,tokens]");
}

// Returns the embedding of the target. With shared_embedding it is that of the source.
template <class M>
auto& target_embedding_of(M& model) {
  return model.target_embedding.weight ? model.target_embedding : model.source_embedding;
}

// Returns the output projection. Its tensors share the model's memory; if the output is tied, its weight is that of the embedding. In the backward pass `model`
// holds the gradients, and the projection's gradients are written to its memory.
Linear output_of(const EncoderDecoder& model) {
  const Tensor& weight = model.output.weight ? model.output.weight : target_embedding_of(model).weight;
  const auto share = [](const Tensor& tensor) {
    if (!tensor) return Tensor();
    const ConstTensorView view = tensor.view();
    return Tensor::share({const_cast<void*>(view.data()), view.dtype(), view.shape(), view.strides()}, tensor.owner());
  };
  return {share(weight), share(model.output.bias)};
}

// Multiplies x by `scale`. If `first` is given, also adds row first[b] + t of the table of positions to x[b,t,:].
void scale_and_add_positions(TensorView x, double scale, const std::vector<std::int64_t>& first, Executor* executor) {
  const std::int64_t tokens = x.extent(1), width = x.extent(2);
  const std::int64_t low = first.empty() ? 0 : std::ranges::min(first), high = first.empty() ? 0 : std::ranges::max(first);
  dispatch_floating(x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    Tensor positions;
    if (!first.empty()) {
      positions = Tensor(DTypeOf<A>::value, {high - low + tokens, width});
      sinusoidal_positions(positions, low);
    }
    const A* const table = positions ? positions.template data<A>() : nullptr;
    const Rows<T> rows(x);
    parallel_for(rows.count(), row_grain(width, 1), executor, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const A* const at = table ? table + (first[static_cast<std::size_t>(r / tokens)] - low + r % tokens) * width : nullptr;
        for (std::int64_t e = 0; e < width; ++e) {
          T& value = rows.at(r, e);
          value = store<T>(static_cast<A>(scale) * load(value) + (at ? at[e] : A{0}));
        }
      }
    });
  });
}

Tensor embed(const Embedding& embedding, ConstTensorView ids, const std::vector<std::int64_t>& first, const RunOptions& options) {
  Tensor x = uninitialised(embedding.weight.dtype(), appended(ids.shape(), {embedding.width()}), options.workspace);
  embedding.forward(ids, x, {.executor = options.executor});
  scale_and_add_positions(x, std::sqrt(static_cast<double>(embedding.width())), first, options.executor);
  return x;
}

std::vector<std::int64_t> from_zero(ConstTensorView ids) { return std::vector<std::int64_t>(static_cast<std::size_t>(ids.extent(0))); }

Embedding make_embedding(std::int64_t count, const EncoderDecoderConfig& config, std::uint64_t seed) {
  Tensor weight(config.layer.dtype, {count, config.layer.width});
  Initialiser(seed).normal(weight, 0, 1 / std::sqrt(static_cast<double>(config.layer.width)));
  return Embedding(std::move(weight));
}

LayerConfig layer_config(const EncoderDecoderConfig& config, std::uint64_t seed) {
  LayerConfig layer = config.layer;
  layer.norm_position = layer.norm_position.value_or(NormPosition::pre);
  layer.seed = seed;
  return layer;
}

AttentionOptions of_encoder(const EncoderDecoderOptions& options) {
  return with_seed({.mask = options.source_mask,
                    .mode = options.mode,
                    .dropout_seed = options.dropout_seed,
                    .executor = options.executor,
                    .workspace = options.workspace},
                   kEncoder);
}

}  // namespace

EncoderDecoder::EncoderDecoder(const EncoderDecoderConfig& config) : dropout(config.layer.dropout) {
  constexpr const char* kOperation = "EncoderDecoder";
  const std::uint64_t seed = config.layer.seed;
  const std::int64_t target_count = config.target_count == 0 ? config.source_count : config.target_count;
  require(config.source_count >= 1 && target_count >= 1 && config.layer.width >= 1, kOperation, ": source_count is ", config.source_count,
          ", target_count ", target_count, " and width ", config.layer.width, "; each must be at least 1");
  require(!config.shared_embedding || target_count == config.source_count, kOperation, ": source_count is ", config.source_count,
          " and target_count ", target_count, "; with shared_embedding both must be equal");
  require(is_floating(config.layer.dtype), kOperation, ": the parameters must be floating, not ", config.layer.dtype);
  require_dropout(kOperation, config.layer.dropout);
  source_embedding = make_embedding(config.source_count, config, derive_seed(seed, kSource));
  if (!config.shared_embedding) target_embedding = make_embedding(target_count, config, derive_seed(seed, kTarget));
  encoder = Encoder(layer_config(config, derive_seed(seed, kEncoder)), config.layers);
  decoder = Decoder(layer_config(config, derive_seed(seed, kDecoder)), config.decoder_layers == 0 ? config.layers : config.decoder_layers);
  if (!config.tied_output)
    output = Linear({.in_width = config.layer.width, .out_width = target_count, .dtype = config.layer.dtype, .seed = derive_seed(seed, kOutput)});
}

std::int64_t EncoderDecoder::target_count() const { return output.weight ? output.out_width() : target_embedding_of(*this).count(); }

void EncoderDecoder::forward(ConstTensorView source, ConstTensorView target, TensorView logits, const EncoderDecoderOptions& options,
                             Saved* saved) const {
  constexpr const char* kOperation = "EncoderDecoder.forward";
  require_ids(kOperation, {"source", source}), require_ids(kOperation, {"target", target});
  require(source.extent(0) == target.extent(0), kOperation, ": source is ", source.shape(), " and target ", target.shape(),
          "; both must have the same number of sequences");
  require_exactly(kOperation, {"logits", logits}, appended(target.shape(), {target_count()}), source_embedding.weight.dtype());
  require_no_overlap(kOperation, {"logits", logits}, {{"source", source}, {"target", target}});
  require_parameters_separate(kOperation, {{"logits", logits}}, *this);
  const AttentionOptions attention = of_encoder(options);
  const double dropped = dropout_of(kOperation, dropout, attention);
  if (saved != nullptr) *saved = {};  // gives the memory of an earlier pass back to the workspace
  const RunOptions run{options.executor, options.workspace};
  const std::uint64_t seed = options.dropout_seed.value_or(0);
  Saved pass;
  pass.source_ids = source, pass.target_ids = target, pass.dropout = dropped, pass.seed = seed;
  const auto embedded = [&](const Embedding& embedding, ConstTensorView ids, Part number) {
    Tensor x = embed(embedding, ids, from_zero(ids), run);
    if (dropped > 0) nn::dropout(x, x, dropped, derive_seed(seed, number), run.executor);
    return x;
  };
  pass.source = embedded(source_embedding, source, kSource);
  pass.target = embedded(target_embedding_of(*this), target, kTarget);
  pass.memory = uninitialised(logits.dtype(), pass.source.shape(), run.workspace);
  pass.decoded = uninitialised(logits.dtype(), pass.target.shape(), run.workspace);
  DecoderOptions of_decoder{.attention = attention, .memory_mask = options.source_mask};
  of_decoder.attention.mask = {};
  if (options.dropout_seed) of_decoder.attention.dropout_seed = derive_seed(seed, kDecoder);
  encoder.forward(pass.source, pass.memory, attention, saved != nullptr ? &pass.encoder : nullptr);
  decoder.forward(pass.target, pass.memory, pass.decoded, of_decoder, saved != nullptr ? &pass.decoder : nullptr);
  output_of(*this).forward(pass.decoded, logits, run);
  if (saved != nullptr) *saved = std::move(pass);
}

void EncoderDecoder::backward(const Saved& saved, ConstTensorView d_logits, const Gradients& gradients, const RunOptions& options) const {
  constexpr const char* kOperation = "EncoderDecoder.backward";
  require(static_cast<bool>(saved.decoded), kOperation, ": saved is empty; give it to forward first");
  require(gradients.parameters != nullptr, kOperation, ": gradients.parameters is missing");
  EncoderDecoder& grads = *gradients.parameters;
  require_exactly(kOperation, {"d_logits", d_logits}, appended(saved.target_ids.shape(), {target_count()}), source_embedding.weight.dtype());
  require_gradients(kOperation, *this, grads, {{"source", saved.source_ids}, {"target", saved.target_ids}, {"d_logits", d_logits}});
  const auto like = [&](const Tensor& tensor) { return uninitialised(tensor.dtype(), tensor.shape(), options.workspace); };
  Tensor d_decoded = like(saved.decoded), d_target = like(saved.target), d_memory = like(saved.memory), d_source = like(saved.source);
  const Write write = gradients.parameters_write;
  Linear d_output = output_of(grads);
  output_of(*this).backward(saved.decoded, d_logits, {.x = d_decoded, .parameters = &d_output, .parameters_write = write}, options);
  decoder.backward(saved.decoder, d_decoded,
                   {.x = d_target, .memory = d_memory, .parameters = &grads.decoder, .parameters_write = write, .cross_attention_weights = gradients.source_attention_weights},
                   options);
  encoder.backward(saved.encoder, d_memory, {.x = d_source, .parameters = &grads.encoder, .parameters_write = write}, options);
  const auto embed_backward = [&](const Embedding& embedding, Embedding& d_embedding, ConstTensorView ids, TensorView d_x, Part number, bool again) {
    if (saved.dropout > 0) nn::dropout(d_x, d_x, saved.dropout, derive_seed(saved.seed, number), options.executor);
    scale_and_add_positions(d_x, std::sqrt(static_cast<double>(width())), {}, options.executor);
    embedding.backward(ids, d_x, {.parameters = &d_embedding, .parameters_write = again ? Write::add : write}, options);
  };
  embed_backward(target_embedding_of(*this), target_embedding_of(grads), saved.target_ids, d_target, kTarget, !output.weight);
  embed_backward(source_embedding, grads.source_embedding, saved.source_ids, d_source, kSource, !target_embedding.weight);
}

void EncoderDecoder::encode(ConstTensorView source, TensorView memory, const EncoderDecoderOptions& options) const {
  constexpr const char* kOperation = "EncoderDecoder.encode";
  require_ids(kOperation, {"source", source});
  require(options.mode == Mode::evaluation, kOperation, ": mode is training; only forward computes a pass for training");
  const Tensor x = embed(source_embedding, source, from_zero(source), {options.executor, options.workspace});
  encoder.forward(x, memory, of_encoder(options));
}

void EncoderDecoder::decode(ConstTensorView target, TensorView logits, DecoderCache& cache, const RunOptions& options) const {
  constexpr const char* kOperation = "EncoderDecoder.decode";
  require_ids(kOperation, {"target", target});
  require(target.extent(0) == cache.sequences(), kOperation, ": target is ", target.shape(), "; the cache has ", cache.sequences(), " sequences");
  require_exactly(kOperation, {"logits", logits}, appended(target.shape(), {target_count()}), source_embedding.weight.dtype());
  require_no_overlap(kOperation, {"logits", logits}, {{"target", target}});
  require_parameters_separate(kOperation, {{"logits", logits}}, *this);
  std::vector<std::int64_t> first;
  for (std::int64_t r = 0; r < cache.sequences(); ++r) first.push_back(cache.length(r));
  const Tensor x = embed(target_embedding_of(*this), target, first, options);
  Tensor decoded = uninitialised(logits.dtype(), x.shape(), options.workspace);
  LengthsRollback before(cache.tokens_.layers_);
  decoder.forward(x, decoded, cache, {.executor = options.executor, .workspace = options.workspace});
  output_of(*this).forward(decoded, logits, options);
  before.commit();
}

}  // namespace polyhead::nn
