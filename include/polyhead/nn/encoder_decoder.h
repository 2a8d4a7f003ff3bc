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
  std::int64_t target_count = 0;    // 0: source_count
  std::int64_t layers = 1;          // number of layers of the encoder
  std::int64_t decoder_layers = 0;  // number of layers of the decoder; 0: layers
  LayerConfig layer;                // settings of the layers of both stacks; layer.dropout also applies to the embedded texts, and layer.seed draws all initial parameters
  bool shared_embedding = false;    // one embedding for source and target, whose counts must be equal
  bool tied_output = false;         // true: the weight of the output projection is the target's embedding; false: the projection has its own weight, and a bias
};

struct EncoderDecoderOptions {
  Mask source_mask{};  // masks positions of the source, by key_lengths [B], attend_keys or block_keys
  Mode mode = Mode::evaluation;
  std::optional<std::uint64_t> dropout_seed{};  // in training with dropout: required, a new one for each step
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;
};

// A text is embedded as x = dropout(sqrt(E) embedding[ids] + sinusoidal_positions). memory = encoder(source); logits = output(decoder(target, memory)). The
// decoder is causal: the logits of position t depend on the target's tokens 0 … t only.
struct EncoderDecoder : Module<EncoderDecoder> {
  Embedding source_embedding, target_embedding;  // target_embedding is absent with shared_embedding. Initialised with deviation 1/sqrt(E).
  Encoder encoder;
  Decoder decoder;
  Linear output;  // absent with tied_output
  double dropout = 0;

  // What backward and maps need from a forward pass. Ids and masks are only views: the caller keeps their memory. Layer i has the
  // cross-attention weights attention_map(attention.maps(), out [B,N,T,S], attention.sdpa) with attention = saved.decoder.layers[i].cross_attention.
  struct Saved {
    ConstTensorView source_ids, target_ids;
    Tensor source, target;   // the embedded texts, [B,S,E] and [B,T,E]
    Tensor memory, decoded;  // outputs of the encoder [B,S,E] and of the decoder [B,T,E]
    Encoder::Saved encoder;
    Decoder::Saved decoder;
    double dropout = 0;  // dropout probability of that pass; 0 in evaluation
    std::uint64_t seed = 0;
  };

  struct Gradients {
    EncoderDecoder* parameters = nullptr;  // for example zeros_like(model); required. The gradient of an embedding is the sum over all uses of the embedding.
    // Replace or add, as in nn::Gradients; but the gradient of a shared or tied embedding is rounded after each use of the embedding, not once.
    Write parameters_write = Write::replace;
    std::span<const AttentionWeightsGradient> source_attention_weights = {};  // input: gradients d_p of a loss on the attention weights of the decoder's cross-attention
  };

  EncoderDecoder() = default;
  explicit EncoderDecoder(const EncoderDecoderConfig& config);

  std::int64_t width() const { return source_embedding.width(); }
  std::int64_t target_count() const;

  // source [B,S] and target [B,T], int64 or int32; logits [B,T,target_count] of the parameters' dtype.
  void forward(ConstTensorView source, ConstTensorView target, TensorView logits, const EncoderDecoderOptions& options = {},
               Saved* saved = nullptr) const;
  void backward(const Saved& saved, ConstTensorView d_logits, const Gradients& gradients, const RunOptions& options = {}) const;

  // Computes the memory [B,S,E], as forward() does in evaluation.
  void encode(ConstTensorView source, TensorView memory, const EncoderDecoderOptions& options = {}) const;
  // Decodes the next T tokens of the cache's sequences: target [sequences,T], logits [sequences,T,target_count]. The cache is unchanged if decode() throws.
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
