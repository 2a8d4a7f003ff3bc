// Caches for writing a text a few tokens at a time with a stack of layers: an Encoder that has a causal mask (such as GPT-2), or a Decoder. They hold the keys
// and values of the earlier tokens in each layer. A decoder's cache also holds those of the memory, which are thus projected once and not in each step. Only
// for evaluation.
//
//   DecoderCache cache(decoder, memory, {.beams = 4, .capacity = 64, .memory_mask = {.key_lengths = lengths}});
//   decoder.forward(x, y, cache);                    // x, y [B*4,T,E]: the next T tokens
//   cache.reorder(parents);                          // in a step of beam_search()
#pragma once

#include "polyhead/nn/decoder_layer.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct EncoderCacheConfig {
  std::int64_t sequences = 0;
  std::int64_t capacity = 0;     // maximum number of tokens of a sequence
  std::optional<DType> dtype{};  // dtype of the stored keys and values (KeyValueCacheConfig::dtype); absent: the dtype of the layers
};

class EncoderCache {
 public:
  EncoderCache() = default;  // no sequences
  EncoderCache(const Encoder& encoder, const EncoderCacheConfig& config);

  // All layers have the same sequences and lengths. The next tokens of a sequence have positions from key_lengths() on; key_lengths() is int64 [sequences].
  std::int64_t sequences() const { return layers_.empty() ? 0 : layers_[0].sequences(); }
  std::int64_t length(std::int64_t sequence) const;
  ConstTensorView key_lengths() const { return layers_.empty() ? ConstTensorView() : layers_[0].key_lengths(); }
  // Each of these functions calls the function of the same name of every layer's KeyValueCache. If a call throws, no layer is changed.
  void reorder(std::span<const std::int64_t> source);
  void truncate(std::span<const std::int64_t> lengths);
  void clear();
  // The caches of the layers, for a caller that runs the layers itself. Such a caller must append a token to all caches or to none.
  std::span<KeyValueCache> layers() { return layers_; }

 private:
  friend struct Encoder;
  friend class DecoderCache;
  friend struct Decoder;
  friend struct EncoderDecoder;
  EncoderCache(const std::vector<const MultiHeadAttention*>& layers, const EncoderCacheConfig& config);

  std::vector<KeyValueCache> layers_;
};

struct DecoderCacheConfig {
  std::int64_t beams = 1;        // number of sequences that read the same memory
  std::int64_t capacity = 0;     // maximum number of tokens of a sequence
  // which keys of the memory may be attended to: key_lengths [B], attend_keys or block_keys, which are copied; Error with any other member of Mask
  Mask memory_mask{};
  // dtype of the stored keys and values of tokens; absent: the dtype of the layers. Keys and values of the memory always have the dtype of the layers.
  std::optional<DType> dtype{};
};

// The cache of a Decoder. Sequence r reads memory r / beams. The decoder's parameters may not change while a cache for it is in use.
class DecoderCache {
 public:
  DecoderCache() = default;  // no sequences
  DecoderCache(const Decoder& decoder, ConstTensorView memory, const DecoderCacheConfig& config, const RunOptions& options = {});  // memory [B,S,M]

  std::int64_t sequences() const { return tokens_.sequences(); }  // Returns B beams, the number of sequences.
  std::int64_t length(std::int64_t sequence) const { return tokens_.length(sequence); }
  ConstTensorView key_lengths() const { return tokens_.key_lengths(); }
  void reorder(std::span<const std::int64_t> source);  // Error if a sequence would be replaced by a sequence that reads another memory.
  void truncate(std::span<const std::int64_t> lengths) { tokens_.truncate(lengths); }
  void clear() { tokens_.clear(); }  // Removes all tokens and keeps the memory.

 private:
  friend struct Decoder;
  friend struct EncoderDecoder;
  struct Memory {
    Tensor k, v;  // [B,S,K*H]: the projected keys and values of the memory; with qk_norm the keys are normalised
  };
  Mask memory_mask() const { return {.key_lengths = key_lengths_, .attend_keys = attend_keys_, .block_keys = block_keys_}; }

  EncoderCache tokens_;
  std::vector<Memory> memory_;  // for each layer the keys and values of the memory
  std::int64_t beams_ = 1;
  Tensor key_lengths_, attend_keys_, block_keys_;  // the mask of the memory
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
