// What MultiHeadAttention::forward does differently with a cache.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "nn/attention_shapes.h"

namespace polyhead::nn {

// The mask of a call with a cache: the caller's, with the lengths [B] of the sequences and, for a diagonal, their lengths before the
// append.
Mask mask_in_cache(const AttentionOptions& options, ConstTensorView lengths, ConstTensorView before);

// Checks a call with a cache wholly: what follows throws only for want of memory or of a backend. `shapes` are those of the input.
void require_cache(const char* operation, const MultiHeadAttentionConfig& config, const AttentionInput& input,
                   const AttentionOptions& options, AttentionShapes shapes);

// Gives caches their lengths back unless commit() is called. Make one before anything is appended: it allocates.
class LengthsRollback {
 public:
  explicit LengthsRollback(std::span<KeyValueCache> caches) : caches_(caches) {
    for (const KeyValueCache& cache : caches_) {
      before_.insert(before_.end(), cache.lengths_.begin(), cache.lengths_.end());
      before_.insert(before_.end(), cache.previous_.begin(), cache.previous_.end());
    }
  }
  explicit LengthsRollback(KeyValueCache* cache) : LengthsRollback(std::span(cache, cache != nullptr ? 1 : 0)) {}
  LengthsRollback(const LengthsRollback&) = delete;
  LengthsRollback& operator=(const LengthsRollback&) = delete;
  ~LengthsRollback() {
    auto from = before_.begin();
    for (KeyValueCache& cache : caches_) {
      for (std::vector<std::int64_t>* lengths : {&cache.lengths_, &cache.previous_}) {
        const auto last = from + std::ssize(*lengths);
        std::copy(from, last, lengths->begin());
        from = last;
      }
    }
  }
  void commit() { caches_ = {}; }

 private:
  std::span<KeyValueCache> caches_;
  std::vector<std::int64_t> before_;  // of each cache, its lengths and those before its last append
};

}  // namespace polyhead::nn
