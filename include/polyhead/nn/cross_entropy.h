// The cross-entropy loss of a classifier or a language model, and its gradient: computes both from the model's logits.
#pragma once

#include <cstdint>
#include <optional>

#include "polyhead/executor.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

enum class LossReduction : std::uint8_t {
  mean,  // the loss is the mean over the positions whose target is not ignore_index; Error if there is no such position
  sum,
};

struct CrossEntropyOptions {
  std::optional<std::int64_t> ignore_index{};  // positions with this target are left out: their logits are not read, and their gradient is 0
  double label_smoothing = 0;                   // epsilon in [0,1]
  LossReduction reduction = LossReduction::mean;
  // a factor of the gradient d_logits. For micro-batches pass LossReduction::sum and d_loss = 1 / (number of positions in all micro-batches).
  double d_loss = 1;
  Executor* executor = nullptr;
};

struct CrossEntropyLoss {
  double loss = 0;             // in nats
  std::int64_t positions = 0;  // number of positions whose target is not ignore_index
};

// Computes the loss and, if d_logits is given, its gradient. With p = softmax(x) over the C logits x of a position and its target t, the position's loss is
//   -(1 - epsilon) log p[t] - epsilon/C sum_c log p[c],     d_x[c] = p[c] - (1 - epsilon) [c = t] - epsilon/C
// (docs/maths.md, eq. 30 and 31; epsilon is the label smoothing of Szegedy et al. 2016, section 7, as in torch.nn.CrossEntropyLoss). Non-finite logits
// follow IEEE arithmetic: -infinity is a class of probability 0.
//
// logits is [*,C] of any floating dtype, targets is [*] int64 or int32; both may have any strides. A target that is neither in [0,C) nor options.ignore_index
// is an Error; then nothing is written. d_logits has the shape and dtype of the logits. It may be the same view as logits, so that training keeps one tensor
// [*,C]. The loss is summed in float64 in the order of the positions, so its bits do not depend on the threads.
CrossEntropyLoss cross_entropy(ConstTensorView logits, ConstTensorView targets, TensorView d_logits = {}, const CrossEntropyOptions& options = {});

}  // namespace polyhead::nn
#pragma GCC visibility pop
