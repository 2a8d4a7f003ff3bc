// Cuts one leading dimension of a call into independent chunks. The activations of a chunk stay in the second-level cache from one product to the next, and
// threads take whole chunks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/parallel.h"
#include "polyhead/workspace.h"

namespace polyhead::nn {

// Makes `tensor` a tensor of this dtype and shape whose elements are not set. If it already has both, its memory is reused.
inline void reuse_or_allocate(Tensor& tensor, DType dtype, const Shape& shape, const Workspace* workspace) {
  if (tensor && tensor.dtype() == dtype && tensor.shape() == shape) return;
  tensor = Tensor();  // frees the old memory first, so that the workspace can reuse it
  tensor = uninitialised(dtype, shape, workspace);
}

class Chunks {
 public:
  Chunks() = default;  // one chunk
  // Cuts `extent` >= 1 indices into chunks. `bytes` is the size of the activations of one index; `parameter_bytes` is the size of the parameters that must be
  // packed if there are several chunks. There is only one chunk if the parameters are larger than all activations, or if chunks would leave threads idle: if
  // each thread would get fewer than two chunks, or if threads would be idle for more than a tenth of their time.
  Chunks(std::int64_t extent, std::int64_t bytes, std::int64_t parameter_bytes, Executor* executor) : extent_(extent), size_(extent) {
    constexpr std::int64_t kBytes = 768 << 10;  // 3/4 of a second-level cache of 1 MiB
    const int threads = threads_of(executor);
    const std::int64_t size = std::clamp<std::int64_t>(kBytes / std::max<std::int64_t>(bytes, 1), 1, extent);
    const std::int64_t chunks = extent / size;
    const bool fills = chunks >= 2 * threads && 10 * chunks >= 9 * threads * longest_share(chunks, 1, threads);
    if (extent * bytes >= parameter_bytes && (threads == 1 || fills)) size_ = size;
  }

  std::int64_t count() const { return (extent_ + size_ - 1) / size_; }

  // Returns the part of `view` that belongs to a chunk. A view without the dimension, or with the extent 1, is the same for every chunk.
  template <class View>
  View of(const View& view, int dimension, std::int64_t chunk) const {
    if (!view || dimension < 0 || view.extent(dimension) == 1) return view;
    return view.slice(dimension, chunk * size_, std::min(chunk * size_ + size_, extent_));
  }

 private:
  std::int64_t extent_ = 1, size_ = 1;
};

}  // namespace polyhead::nn
