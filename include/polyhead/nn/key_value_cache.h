// A key/value cache: the keys and values of earlier tokens, for texts that are computed a few tokens at a time. Its memory is allocated once. Sequences may
// have different lengths. Tokens are appended, cut off (speculative decoding) and copied from sequence to sequence (beam search) in place.
//
//   KeyValueCache cache({.sequences = 2, .kv_heads = 8, .capacity = 4096, .head_width = 128});
//   cache.append(k, v);                                        // [B,K,T,H], [B,K,T,V]: the new tokens
//   sdpa_forward({.q = q, .k = cache.keys(), .v = cache.values(), .out = out}, {.mask = cache.causal_mask()});
//
// MultiHeadAttention uses a cache that is given as AttentionOptions::cache. Letters: B sequences, K key/value heads, H and V widths of a key and of a value
// head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "polyhead/executor.h"
#include "polyhead/mask.h"
#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct KeyValueCacheConfig {
  std::int64_t sequences = 0;         // B
  std::int64_t kv_heads = 0;          // K
  std::int64_t capacity = 0;          // maximum number of keys of a sequence
  std::int64_t head_width = 0;        // H
  std::int64_t value_head_width = 0;  // V; 0: the same as head_width
  // The dtype of the stored keys and values: float32, float64, bfloat16, float16, or int8 with a float32 scale for each token and head. It may be narrower than
  // the dtype of the queries, unless the queries are float64 (see SdpaForward::k).
  DType dtype = DType::f32;
};

struct SequenceCopy;

// Several threads may read one cache at the same time. While a function that is not const runs, no other thread may use the cache. Every function checks and
// allocates before it writes anything, so a cache is unchanged if a call throws, also std::bad_alloc.
class KeyValueCache {
 public:
  KeyValueCache() = default;  // no sequences
  explicit KeyValueCache(const KeyValueCacheConfig& config);
  // Makes a cache in the caller's memory [B,K,capacity,H] and [B,K,capacity,V], with any strides; the first lengths[b] keys of sequence b are in use. The
  // caller keeps the memory alive, and changes it only between calls. int8 needs scales: float32 [B,K,capacity].
  KeyValueCache(TensorView keys, TensorView values, std::span<const std::int64_t> lengths = {}, TensorView key_scales = {},
                TensorView value_scales = {});
  KeyValueCache(const KeyValueCache&) = delete;
  KeyValueCache& operator=(const KeyValueCache&) = delete;
  KeyValueCache(KeyValueCache&&) = default;
  KeyValueCache& operator=(KeyValueCache&&) = default;
  ~KeyValueCache() = default;

  const KeyValueCacheConfig& config() const { return config_; }
  std::int64_t sequences() const { return config_.sequences; }
  std::int64_t capacity() const { return config_.capacity; }
  std::int64_t length(std::int64_t sequence) const;
  std::int64_t longest() const;  // the length of the longest sequence, which is S of the views below

  // Views of the keys [B,K,S,H] and of the values [B,K,S,V], where S is the length of the longest sequence at the time of the call. Nothing is copied. Rows of
  // a sequence beyond its length are unspecified.
  ConstTensorView keys() const;
  ConstTensorView values() const;
  // The scales of int8 keys and values, float32 [B,K,S], for SdpaForward::k_scale and v_scale; absent for other dtypes.
  ConstTensorView key_scales() const;
  ConstTensorView value_scales() const;
  // int64 [B]: the number of tokens of each sequence now, and its number before the last append(). The views are valid as long as the cache; their values
  // change with it.
  ConstTensorView key_lengths() const { return {lengths_.data(), {config_.sequences}}; }
  ConstTensorView previous_lengths() const { return {previous_.data(), {config_.sequences}}; }
  // Views of all stored keys [B,K,capacity,H] and values [B,K,capacity,V], used or not.
  ConstTensorView all_keys() const { return keys_; }
  ConstTensorView all_values() const { return values_; }
  ConstTensorView all_key_scales() const { return key_scales_; }
  ConstTensorView all_value_scales() const { return value_scales_; }

  // Adds T tokens to every sequence: k [B,K,T,H] and v [B,K,T,V], of any floating dtype. They are rounded to the cache's dtype, for int8 by quantize_rows() of
  // polyhead/quantize.h. If new_tokens, integers [B] in [0,T], is given, sequence b gets only the first new_tokens[b] tokens. Error if a sequence would exceed
  // the capacity, or if k or v overlaps the cache.
  void append(ConstTensorView k, ConstTensorView v, ConstTensorView new_tokens = {}, Executor* executor = nullptr);
  // Returns the lengths [B] that the sequences would have after append() of T = `tokens` tokens. Throws the Errors that append() would throw.
  std::vector<std::int64_t> lengths_after(std::int64_t tokens, ConstTensorView new_tokens = {}) const;

  // Returns the mask for a call whose T queries are the tokens of the last append(). causal_mask(): each query attends to itself and to all tokens before it.
  // mask(): each query attends to all tokens of its sequence. Rows t >= new_tokens[b] are computed too and are meaningless. The mask's views are valid until
  // the cache changes. After truncate, reorder, copy or clear the mask is for the tokens that will be appended next.
  Mask causal_mask() const;
  Mask mask() const { return {.key_lengths = key_lengths()}; }

  // Replaces every sequence b by the old sequence source[b]. `source` may repeat sequences and contain cycles. Only tokens in use are copied.
  void reorder(std::span<const std::int64_t> source);
  void copy_sequence(std::int64_t from, std::int64_t to);
  // Removes the tokens from `length` on. Error if the sequence has fewer tokens.
  void truncate(std::int64_t sequence, std::int64_t length);
  void truncate(std::span<const std::int64_t> lengths);  // [B]
  void clear();                                          // sets all lengths to 0

 private:
  friend class EncoderCache;
  friend class LengthsRollback;

  void require_sequence(const char* operation, std::int64_t sequence) const;
  // The two steps of reorder(). Only plan_reorder() can fail, so a stack of caches changes as a whole or not at all.
  std::vector<SequenceCopy> plan_reorder(std::span<const std::int64_t> source) const;
  std::int64_t saved_bytes(std::span<const SequenceCopy> copies) const;
  void apply(std::span<const SequenceCopy> copies, void* saved) noexcept;

  struct Parts {  // the keys, the values and, with a width of 1, their scales, all [B,K,capacity,width]
    TensorView views[4];
    std::span<const TensorView> all() const { return {views, views[2] ? 4u : 2u}; }
  };
  Parts parts() const;
  void copy_tokens(std::int64_t from, std::int64_t to) noexcept;  // copies keys, values and the length of a sequence
  void set_lengths(std::span<const std::int64_t> after) noexcept;  // keeps the old lengths in previous_

  KeyValueCacheConfig config_;
  Tensor own_[4];                                 // the memory of keys_, values_ and their scales; absent if the caller owns the memory
  TensorView keys_, values_;                      // [B,K,capacity,H], [B,K,capacity,V]
  TensorView key_scales_, value_scales_;          // [B,K,capacity], only for int8
  std::vector<std::int64_t> lengths_, previous_;  // [B]
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
