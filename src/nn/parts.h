// One leading dimension of a call cut into parts that know nothing of each other: what lies between the products of a part then stays in
// the second-level cache, and each thread computes parts of its own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/parallel.h"
#include "polyhead/workspace.h"

namespace polyhead::nn {

// A tensor whose elements will be written: in the memory that it has, from the part before, where that fits.
inline void renew(Tensor& tensor, DType dtype, const Shape& shape, const Workspace* workspace) {
  if (tensor && tensor.dtype() == dtype && tensor.shape() == shape) return;
  tensor = Tensor();  // its memory may be what comes next
  tensor = uninitialised(dtype, shape, workspace);
}

class Parts {
 public:
  Parts() = default;  // one part
  // `bytes` lie between the products of one index, `weights` are packed for all parts. One part where there is less between than is packed,
  // and where threads would go without. extent >= 1
  Parts(std::int64_t extent, std::int64_t bytes, std::int64_t weights, Executor* executor) : extent_(extent), size_(extent) {
    constexpr std::int64_t kBytes = 768 << 10;  // of a second-level cache of 1 MiB
    constexpr std::int64_t kPartsPerThread = 4;
    const std::int64_t threads = threads_of(executor);
    const std::int64_t size = std::clamp<std::int64_t>(kBytes / std::max<std::int64_t>(bytes, 1), 1, extent);
    if (extent * bytes >= weights && (threads == 1 || extent / size >= threads * kPartsPerThread)) size_ = size;
  }

  std::int64_t count() const { return (extent_ + size_ - 1) / size_; }

  // A dimension that is missing or broadcast is the same for all parts.
  template <class View>
  View of(const View& view, int dimension, std::int64_t part) const {
    if (!view || dimension < 0 || view.extent(dimension) == 1) return view;
    return view.slice(dimension, part * size_, std::min(part * size_ + size_, extent_));
  }

 private:
  std::int64_t extent_ = 1, size_ = 1;
};

}  // namespace polyhead::nn
