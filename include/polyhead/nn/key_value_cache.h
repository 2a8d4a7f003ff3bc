// Keys and values of earlier tokens, for texts that are computed a few tokens at a time. Memory is allocated once. Sequences may have
// different lengths. Tokens are appended, cut off (speculative decoding) and copied from sequence to sequence (beam search) in place.
//
//   KeyValueCache cache({.sequences = 2, .kv_heads = 8, .capacity = 4096, .head_width = 128});
//   cache.append(k, v);                                        // [B,K,T,H], [B,K,T,V]: the new tokens
//   sdpa_forward({.q = q, .k = cache.keys(), .v = cache.values(), .out = out}, {.mask = cache.causal_mask()});
//
// AttentionOptions::cache gives a cache to MultiHeadAttention. B sequences, K key/value heads, H and V widths of a key and of a value head.
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
  std::int64_t value_head_width = 0;  // V; 0: head_width
  // dtype of the stored keys and values: float32, float64, bfloat16, float16, or int8 with a float32 scale for each token and head. It may be narrower
  // than the dtype of the queries, unless the queries are float64 (SdpaForward::k).
  DType dtype = DType::f32;
};

struct SequenceCopy;

// Several threads may read one cache at the same time; while a function that is not const runs, no other thread may use the cache. Every function checks and
// allocates before it writes anything: a cache is unchanged if a call throws, std::bad_alloc too.
class KeyValueCache {
 public:
  KeyValueCache() = default;  // no sequences
  explicit KeyValueCache(const KeyValueCacheConfig& config);
  // Uses the caller's memory [B,K,capacity,H] and [B,K,capacity,V], with any strides, whose first lengths[b] keys are in use. The caller keeps the memory alive
  // and changes it only between calls. int8 needs scales: float32 [B,K,capacity].
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
  std::int64_t longest() const;  // the longest length, which is S of the views below

  // Views without a copy: [B,K,S,H] and [B,K,S,V], where S is the longest length now. Rows of a sequence beyond its length are unspecified.
  ConstTensorView keys() const;
  ConstTensorView values() const;
  // Scales of int8 keys and values, float32 [B,K,S], for SdpaForward::k_scale and v_scale; absent for other dtypes.
  ConstTensorView key_scales() const;
  ConstTensorView value_scales() const;
  // int64 [B]: the number of tokens of each sequence now, and before the last append(). The views are valid as long as the cache; their values change with it.
  ConstTensorView key_lengths() const { return {lengths_.data(), {config_.sequences}}; }
  ConstTensorView previous_lengths() const { return {previous_.data(), {config_.sequences}}; }
  // The whole memory, [B,K,capacity,H] and [B,K,capacity,V].
  ConstTensorView all_keys() const { return keys_; }
  ConstTensorView all_values() const { return values_; }
  ConstTensorView all_key_scales() const { return key_scales_; }
  ConstTensorView all_value_scales() const { return value_scales_; }

  // Adds T tokens to every sequence: k [B,K,T,H] and v [B,K,T,V] of any floating dtype, rounded to the cache's dtype (int8: by quantize_rows() of
  // polyhead/quantize.h). With new_tokens, integers [B] in [0,T], sequence b gets only the first new_tokens[b] of them. Error if a sequence would
  // exceed the capacity, or if k or v overlaps the cache.
  void append(ConstTensorView k, ConstTensorView v, ConstTensorView new_tokens = {}, Executor* executor = nullptr);
  // Returns the lengths [B] that append() of T = `tokens` tokens would give; throws the errors that append() would throw.
  std::vector<std::int64_t> lengths_after(std::int64_t tokens, ConstTensorView new_tokens = {}) const;

  // Returns the mask of a call whose T queries are the tokens of the last append(): each attends to itself and to all tokens before it. Without
  // `causal`, each attends to all tokens of its sequence. Rows t >= new_tokens[b] are computed too and are meaningless. The mask's views are valid
  // until the cache changes. After truncate, reorder, copy or clear the mask is for the tokens that will be appended next.
  Mask causal_mask() const;
  Mask mask() const { return {.key_lengths = key_lengths()}; }

  // Sets every sequence b to the old sequence source[b]; `source` may repeat sequences and contain cycles. Copies only tokens in use.
  void reorder(std::span<const std::int64_t> source);
  void copy_sequence(std::int64_t from, std::int64_t to);
  // Forgets the tokens from `length` on; Error if the sequence has fewer.
  void truncate(std::int64_t sequence, std::int64_t length);
  void truncate(std::span<const std::int64_t> lengths);  // [B]
  void clear();                                          // all lengths 0

 private:
  friend class EncoderCache;
  friend class LengthsRollback;

  void require_sequence(const char* operation, std::int64_t sequence) const;
  // reorder() in two steps, of which only the first can fail, so that a stack of caches changes whole or not at all.
  std::vector<SequenceCopy> plan_reorder(std::span<const std::int64_t> source) const;
  std::int64_t saved_bytes(std::span<const SequenceCopy> copies) const;
  void apply(std::span<const SequenceCopy> copies, void* saved) noexcept;

  struct Parts {  // [B,K,capacity,.]: keys, values and, with a width of 1, their scales
    TensorView views[4];
    std::span<const TensorView> all() const { return {views, views[2] ? 4u : 2u}; }
  };
  Parts parts() const;
  void copy_tokens(std::int64_t from, std::int64_t to) noexcept;  // copies keys, values and the length of a sequence
  void set_lengths(std::span<const std::int64_t> after) noexcept;  // stores the old lengths in previous_

  KeyValueCacheConfig config_;
  Tensor own_[4];                                 // memory of the four views below; absent if the caller owns the memory
  TensorView keys_, values_;                      // [B,K,capacity,H], [B,K,capacity,V]
  TensorView key_scales_, value_scales_;          // [B,K,capacity], for int8
  std::vector<std::int64_t> lengths_, previous_;  // [B]
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
