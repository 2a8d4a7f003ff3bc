// What MultiHeadAttention::forward does differently with a cache.
#pragma once

#include <vector>

#include "nn/attention_shapes.h"

namespace polyhead::nn {

// The mask of a call with a cache: the caller's, with the lengths [B] of the sequences and, for a diagonal, their lengths before the
// append.
Mask mask_in_cache(const AttentionOptions& options, ConstTensorView lengths, ConstTensorView before);

// Checks a call with a cache wholly: what follows throws only for want of memory or of a backend. `shapes` are those of the input.
void require_cache(const char* operation, const MultiHeadAttentionConfig& config, const AttentionInput& input,
                   const AttentionOptions& options, AttentionShapes shapes);

// Forgets appended tokens unless keep() is called.
class AppendedTokens {
 public:
  explicit AppendedTokens(KeyValueCache* cache) : cache_(cache) {
    if (cache_)
      before_.assign(cache_->previous_lengths().data<std::int64_t>(),
                     cache_->previous_lengths().data<std::int64_t>() + cache_->sequences());
  }
  AppendedTokens(const AppendedTokens&) = delete;
  AppendedTokens& operator=(const AppendedTokens&) = delete;
  ~AppendedTokens() {
    if (cache_) cache_->truncate(before_);
  }
  void keep() { cache_ = nullptr; }

 private:
  KeyValueCache* cache_;
  std::vector<std::int64_t> before_;
};

}  // namespace polyhead::nn
