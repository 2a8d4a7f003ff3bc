// A linear layer whose weight is packed for the kernels once, for several products of a call or, if parameters are constant, for all calls.
#pragma once

#include <memory>

#include "cpu/gemm/gemm.h"
#include "polyhead/nn/linear.h"

namespace polyhead::nn {

enum class PackFor : std::uint8_t { one_product, several_products };

class PackedLinear {
 public:
  PackedLinear() = default;
  // The weight may not change while this object lives. The constructor packs the weight if the workspace caches it, or with PackFor::several_products;
  // otherwise forward() packs it.
  PackedLinear(const Linear& linear, PackFor use, const RunOptions& options);

  std::int64_t out_width() const { return linear_->out_width(); }
  void forward(ConstTensorView x, TensorView y, Executor* executor) const;  // Computes the same as Linear::forward().

 private:
  const Linear* linear_ = nullptr;
  const Workspace* workspace_ = nullptr;
  std::shared_ptr<const cpu::PackedMatrix> weight_;
};

}  // namespace polyhead::nn
