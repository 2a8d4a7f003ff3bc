#include "polyhead/nn/cross_entropy.h"

#include <cmath>

#include "cpu/select.h"
#include "nn/check.h"
#include "nn/ids.h"
#include "nn/rows.h"

namespace polyhead::nn {
namespace {

// Returns the view as rows of logits; a tensor without leading axes is one row.
template <class View>
View rows_of(View view) {
  return view && view.rank() == 1 ? view.unsqueeze(0) : view;
}

// Computes losses[row] for every row whose target is not ignore_index. If d_logits is given, also computes the gradients times `d_row`.
template <class T>
void compute(ConstTensorView logits_view, const std::vector<std::int64_t>& targets, TensorView d_logits_view, double d_row,
             const CrossEntropyOptions& options, std::vector<double>& losses) {
  using A = Accumulator<T>;
  const std::int64_t classes = logits_view.extent(-1);
  const Rows<const T> logits(rows_of(logits_view));
  const bool differentiates = static_cast<bool>(d_logits_view);
  const Rows<T> d_logits(differentiates ? rows_of(d_logits_view) : TensorView(static_cast<T*>(nullptr), {0, classes}));
  const double smoothing = options.label_smoothing, share = smoothing / static_cast<double>(classes);
  constexpr double kNanoseconds = 10;  // time for one element in scalar code
  parallel_for(logits.count(), row_grain(classes, kNanoseconds), options.executor, [&](std::int64_t first, std::int64_t last) {
    const cpu::SoftmaxKernel<A>& kernel = cpu::kernel_of<A>(cpu::current_kernels_of<cpu::SoftmaxKernels>());
    ComputedRow<const T> x(logits, classes);
    ComputedRow<T> d_x(d_logits, classes);
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t target = targets[static_cast<std::size_t>(row)];
      if (target == options.ignore_index) {
        for (std::int64_t c = 0; differentiates && c < classes; ++c) d_logits.at(row, c) = store<T>(A{0});
        continue;
      }
      const A of_target = load(logits.at(row, target));  // read it before d_logits is written, because d_logits may share memory with logits
      A* const d = differentiates ? d_x.at(row) : nullptr;
      const cpu::SoftmaxRow<A> sums = kernel.exps(classes, x.load_row(row), d);
      // log_sum is -log p of the class with the largest logit. Without smoothing the smoothing term is left out, because it may be 0 x infinity.
      const double log_sum = std::log(sums.exps), distance = static_cast<double>(of_target) - static_cast<double>(sums.largest);
      double& loss = losses[static_cast<std::size_t>(row)];
      loss = smoothing == 1 ? 0 : (1 - smoothing) * (log_sum - distance);
      if (smoothing > 0) loss += smoothing * (log_sum - sums.differences / static_cast<double>(classes));
      if (!differentiates) continue;
      kernel.scale(classes, static_cast<A>(d_row / sums.exps), static_cast<A>(-share * d_row), d);
      d[target] -= static_cast<A>((1 - smoothing) * d_row);
      d_x.put(row);
    }
  });
}

}  // namespace

CrossEntropyLoss cross_entropy(ConstTensorView logits, ConstTensorView targets, TensorView d_logits, const CrossEntropyOptions& options) {
  constexpr const char* kOperation = "cross_entropy";
  require(static_cast<bool>(logits), kOperation, ": logits is missing");
  require(is_floating(logits.dtype()) && logits.rank() >= 1, kOperation, ": logits is ", logits.dtype(), " ", logits.shape(),
          "; it must be a floating tensor [*,classes]");
  require(options.label_smoothing >= 0 && options.label_smoothing <= 1, kOperation, ": label_smoothing is ", options.label_smoothing,
          "; it must be in [0,1]");
  const std::vector<std::int64_t> classes = checked_ids(kOperation, {"targets", targets}, logits.extent(-1), options.ignore_index);
  require_shape(kOperation, {"targets", targets}, logits.shape().first(logits.rank() - 1));
  require(d_logits || options.d_loss == 1, kOperation, ": d_loss is ", options.d_loss, " without d_logits; it is a factor of the gradient alone, not of the loss");
  if (d_logits) require_output(kOperation, {"d_logits", d_logits}, {"logits", logits}, {{"targets", targets}});
  CrossEntropyLoss result;
  for (const std::int64_t target : classes) result.positions += target == options.ignore_index ? 0 : 1;
  const bool is_mean = options.reduction == LossReduction::mean;
  require(!is_mean || result.positions > 0, kOperation, ": none of the ", targets.numel(),
          " targets is a class (all are ignore_index), so the mean is undefined; LossReduction::sum gives 0");
  const double divisor = is_mean ? static_cast<double>(result.positions) : 1;
  std::vector<double> losses(classes.size());
  if (logits.numel() > 0) {
    dispatch_floating(logits.dtype(), [&](auto type) {
      compute<typename decltype(type)::type>(logits, classes, d_logits, options.d_loss / divisor, options, losses);
    });
  }
  for (const double loss : losses) result.loss += loss;
  result.loss /= divisor;
  return result;
}

}  // namespace polyhead::nn
