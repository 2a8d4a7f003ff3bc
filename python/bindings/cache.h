// The C++ object behind a Python KeyValueCache.
#pragma once

#include <stdexcept>

#include "arrays.h"
#include "polyhead/nn/key_value_cache.h"

namespace polyhead::python {

struct Cache {
  Tensor own[4];  // the memory of a cache that was restored from a pickle
  nn::KeyValueCache cache;
  Array keys, values, key_scales, value_scales;  // the caller's arrays, if the cache uses the caller's memory
  bool in_use = false;
};

// Marks a cache as in use while a call works on it without the GIL. RuntimeError if another thread uses the cache, because the C++ cache has no locks.
class CacheInUse {
 public:
  explicit CacheInUse(Cache* cache) : cache_(cache) {
    if (cache_ == nullptr) return;
    if (cache_->in_use) throw std::runtime_error("the KeyValueCache is in use by a call on another thread");
    cache_->in_use = true;
  }
  CacheInUse(const CacheInUse&) = delete;
  CacheInUse& operator=(const CacheInUse&) = delete;
  ~CacheInUse() {
    if (cache_ != nullptr) cache_->in_use = false;
  }

 private:
  Cache* cache_;
};

}  // namespace polyhead::python
