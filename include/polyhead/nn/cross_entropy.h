// The loss of a classifier or a language model from its logits, and its gradient, for training.
#pragma once

#include <cstdint>
#include <optional>

#include "polyhead/executor.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

enum class LossReduction : std::uint8_t {
  mean,  // the mean over the positions whose target is not ignore_index; Error if there is no such position
  sum,
};

struct CrossEntropyOptions {
  std::optional<std::int64_t> ignore_index{};  // positions with this target are left out: their logits are not read, their gradient is 0
  double label_smoothing = 0;                   // epsilon in [0,1]
  LossReduction reduction = LossReduction::mean;
  double d_loss = 1;  // factor of d_logits. For micro-batches pass LossReduction::sum and d_loss = 1 / (number of positions in all micro-batches)
  Executor* executor = nullptr;
};

struct CrossEntropyLoss {
  double loss = 0;             // in nats
  std::int64_t positions = 0;  // number of positions whose target is not ignore_index
};

// With p = softmax(x) over the C logits x of a position and target t, the position's loss is
//   -(1 - epsilon) log p[t] - epsilon/C sum_c log p[c],     d_x[c] = p[c] - (1 - epsilon) [c = t] - epsilon/C
// (docs/maths.md, eq. 30 and 31; label smoothing: Szegedy et al. 2016, section 7, as torch.nn.CrossEntropyLoss has it). Non-finite logits
// follow IEEE arithmetic: -infinity is a class of probability 0.
//
// logits [*,C] of any floating dtype; targets [*] int64 or int32, each in [0,C) or options.ignore_index, else Error, before anything is
// written. d_logits, if given, gets the gradient, of the logits' shape and dtype; it may be the logits themselves (the same view), so that
// training keeps one tensor [*,C]. Any strides. The loss is summed in float64 in the order of the positions: no bit depends on the threads.
CrossEntropyLoss cross_entropy(ConstTensorView logits, ConstTensorView targets, TensorView d_logits = {}, const CrossEntropyOptions& options = {});

}  // namespace polyhead::nn
#pragma GCC visibility pop
