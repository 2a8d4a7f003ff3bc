// A Transformer that reads one text and writes another, for example its translation (Vaswani et al. 2017, section 3).
//
//   EncoderDecoder model({.source_count = 8000, .layers = 3, .layer = {.width = 256, .heads = 4, .seed = 1}, .shared_embedding = true, .tied_output = true});
//   model.forward(source, target, logits, {.source_mask = {.key_lengths = lengths}}, &saved);
//   model.backward(saved, d_logits, {.parameters = &gradients});
//
// Decoding:
//   model.encode(source, memory, {.source_mask = mask});
//   DecoderCache cache(model.decoder, memory, {.beams = 4, .capacity = 64, .memory_mask = mask});
//   model.decode(tokens, logits, cache);             // in a step of greedy_tokens() or beam_search()
#pragma once

#include <optional>

#include "polyhead/nn/decoder_layer.h"
#include "polyhead/nn/embedding.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct EncoderDecoderConfig {
  std::int64_t source_count = 0;    // ids of the source are 0 … source_count - 1
  std::int64_t target_count = 0;    // ids of the target are 0 … target_count - 1; 0: as many as of the source
  std::int64_t layers = 1;          // number of layers of the encoder
  std::int64_t decoder_layers = 0;  // number of layers of the decoder; 0: as many as of the encoder
  // The settings of all layers of encoder and decoder. layer.dropout also applies to the embedded texts, and layer.seed draws all initial parameters.
  LayerConfig layer;
  bool shared_embedding = false;    // true: source and target share one embedding; source_count and target_count must then be equal
  bool tied_output = false;         // true: the output projection has the weight of the target's embedding; false: it has its own weight, and a bias
};

struct EncoderDecoderOptions {
  Mask source_mask{};  // which positions of the source may be attended to, by key_lengths [B], attend_keys or block_keys
  Mode mode = Mode::evaluation;
  std::optional<std::uint64_t> dropout_seed{};  // required in training with dropout: a new seed for each step
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;
};

// The model computes memory = encoder(source) and logits = output(decoder(target, memory)). A text is embedded as x = dropout(sqrt(E) embedding[ids] +
// sinusoidal_positions). The decoder is causal: the logits of position t only depend on the target's tokens 0 … t.
struct EncoderDecoder : Module<EncoderDecoder> {
  Embedding source_embedding, target_embedding;  // target_embedding is absent if both texts share one embedding. Initial elements have deviation 1/sqrt(E).
  Encoder encoder;
  Decoder decoder;
  Linear output;  // absent if config.tied_output is true
  double dropout = 0;

  // What backward() and maps need from a forward pass. Saved only has views of ids and masks, so the caller must keep their memory. The cross-attention weights
  // of layer i are attention_map(attention.maps(), out [B,N,T,S], attention.sdpa) with attention = saved.decoder.layers[i].cross_attention.
  struct Saved {
    ConstTensorView source_ids, target_ids;
    Tensor source, target;   // [B,S,E] and [B,T,E]: the embedded texts
    Tensor memory, decoded;  // [B,S,E] and [B,T,E]: the outputs of the encoder and of the decoder
    Encoder::Saved encoder;
    Decoder::Saved decoder;
    double dropout = 0;  // dropout probability of the forward pass; 0 in evaluation
    std::uint64_t seed = 0;
  };

  struct Gradients {
    EncoderDecoder* parameters = nullptr;  // required, for example zeros_like(model). The gradient of an embedding is the sum over all its uses.
    // Replace or add, as in nn::Gradients. The gradient of a shared or tied embedding is rounded after each use of the embedding, not once.
    Write parameters_write = Write::replace;
    // input: the gradients d_p of a loss on the attention weights of the decoder's cross-attention
    std::span<const AttentionWeightsGradient> source_attention_weights = {};
  };

  EncoderDecoder() = default;
  explicit EncoderDecoder(const EncoderDecoderConfig& config);

  std::int64_t width() const { return source_embedding.width(); }
  std::int64_t target_count() const;

  // source is [B,S] and target is [B,T], int64 or int32; logits is [B,T,target_count] of the parameters' dtype.
  void forward(ConstTensorView source, ConstTensorView target, TensorView logits, const EncoderDecoderOptions& options = {},
               Saved* saved = nullptr) const;
  void backward(const Saved& saved, ConstTensorView d_logits, const Gradients& gradients, const RunOptions& options = {}) const;

  // Computes the encoder's output, memory [B,S,E], as forward() does in evaluation.
  void encode(ConstTensorView source, TensorView memory, const EncoderDecoderOptions& options = {}) const;
  // Computes logits [sequences,T,target_count] for target [sequences,T], the next T tokens of the cache's sequences. The cache is unchanged if decode() throws.
  void decode(ConstTensorView target, TensorView logits, DecoderCache& cache, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("source_embedding", self.source_embedding...);
    f("target_embedding", self.target_embedding...);
    f("encoder", self.encoder...);
    f("decoder", self.decoder...);
    f("output", self.output...);
    f("dropout", self.dropout...);
  }
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
