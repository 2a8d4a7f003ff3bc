// A linear map whose weight is packed once for several products: those of a call, or of all calls where parameters are constant.
#pragma once

#include <memory>

#include "cpu/gemm/gemm.h"
#include "polyhead/nn/linear.h"
#include "polyhead/workspace.h"

namespace polyhead::nn {

enum class Products : std::uint8_t { one, several };

class PackedLinear {
 public:
  PackedLinear() = default;
  // A call's products with this map, for which its weight may not change. One packs it for itself, unless the workspace has it.
  PackedLinear(const Linear& map, Products products, Executor* executor, const Workspace* workspace);

  std::int64_t out_width() const { return map_->out_width(); }
  void forward(ConstTensorView x, TensorView y, Executor* executor) const;  // as Linear::forward

 private:
  const Linear* map_ = nullptr;
  std::shared_ptr<const cpu::PackedMatrix> weight_;
};

}  // namespace polyhead::nn
