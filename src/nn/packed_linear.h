// A linear map whose weight is packed once for several products.
#pragma once

#include <optional>

#include "cpu/gemm/gemm.h"
#include "polyhead/nn/linear.h"

namespace polyhead::nn {

class PackedLinear {
 public:
  PackedLinear() = default;
  explicit PackedLinear(const Linear& map) : map_(&map) {}  // packed by every product for itself
  // The weight may not change meanwhile.
  PackedLinear(const Linear& map, Executor* executor, const Workspace* workspace);

  std::int64_t out_width() const { return map_->out_width(); }
  void forward(ConstTensorView x, TensorView y, Executor* executor) const;  // as Linear::forward

 private:
  const Linear* map_ = nullptr;
  std::optional<cpu::PackedMatrix> weight_;
};

}  // namespace polyhead::nn
