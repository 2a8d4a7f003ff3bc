// The steps of MultiHeadAttention::forward() that are different with a cache.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "nn/attention_shapes.h"

namespace polyhead::nn {

// Returns the mask of a call with a cache: the caller's mask, with the sequences' `lengths` [B] as key_lengths. If the mask has a diagonal, `before`, the
// lengths before the tokens were appended, become its diagonal_offsets.
Mask mask_in_cache(const AttentionOptions& options, ConstTensorView lengths, ConstTensorView before);

// Checks everything about a call with a cache. Later code only throws if memory runs out or if no backend serves the problem. `shapes` are the input's shapes.
void require_cache(const char* operation, const MultiHeadAttentionConfig& config, const AttentionInput& input,
                   const AttentionOptions& options, AttentionShapes shapes);

// Its destructor restores the lengths of caches, unless commit() was called. Construct it before anything is appended, because the constructor allocates.
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
  std::vector<std::int64_t> before_;  // the lengths_ and then the previous_ of each cache
};

}  // namespace polyhead::nn
