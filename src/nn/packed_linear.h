// A linear layer whose weight is packed once: for several products of one call, or for all calls if parameters are constant.
#pragma once

#include <memory>

#include "cpu/gemm/gemm.h"
#include "polyhead/nn/linear.h"

namespace polyhead::nn {

enum class PackFor : std::uint8_t { one_product, several_products };

class PackedLinear {
 public:
  PackedLinear() = default;
  // The weight may not change while this object lives. The constructor packs it for several products, or if the workspace caches it;
  // otherwise forward() packs it.
  PackedLinear(const Linear& linear, PackFor use, const RunOptions& options);

  std::int64_t out_width() const { return linear_->out_width(); }
  void forward(ConstTensorView x, TensorView y, Executor* executor) const;  // computes what Linear::forward() computes

 private:
  const Linear* linear_ = nullptr;
  const Workspace* workspace_ = nullptr;
  std::shared_ptr<const cpu::PackedMatrix> weight_;
};

}  // namespace polyhead::nn
