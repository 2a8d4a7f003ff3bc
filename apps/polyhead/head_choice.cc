#include "head_choice.h"

#include <vector>

#include "core/text.h"
#include "format.h"
#include "usage_error.h"

namespace polyhead::app {

std::string HeadChoice::description() const {
  if (!layer) return cat("mean of all ", layers * heads, " heads (", layers, " layers of ", heads, ")");
  return cat("layer ", *layer, head ? cat(", head ", *head) : cat(", mean of its ", counted(heads, "head")));
}

HeadChoice choose_head(std::optional<std::int64_t> layer, std::optional<std::int64_t> head, bool mean, std::int64_t layers,
                       std::int64_t heads) {
  if (layer && *layer >= layers) throw UsageError(cat("--layer ", *layer, ": the model has the layers 0 to ", layers - 1));
  if (head && *head >= heads) throw UsageError(cat("--head ", *head, ": the model has the heads 0 to ", heads - 1, " in each layer"));
  if (!layer && !mean) layer = layers - 1;
  return {.layer = layer, .head = head, .layers = layers, .heads = heads};
}

Tensor chosen_map(const Tensor& attentions, const HeadChoice& choice) {
  const ConstTensorView all = attentions.view();
  const std::int64_t first_layer = choice.layer.value_or(0), last_layer = choice.layer ? first_layer + 1 : choice.layers;
  const std::int64_t first_head = choice.head.value_or(0), last_head = choice.head ? first_head + 1 : choice.heads;
  const auto count = static_cast<double>((last_layer - first_layer) * (last_head - first_head));
  std::vector<double> sum(static_cast<std::size_t>(all.extent(2) * all.extent(3)));
  for (std::int64_t l = first_layer; l < last_layer; ++l) {
    for (std::int64_t n = first_head; n < last_head; ++n) {
      const Tensor one = Tensor::copy_of(all.select(0, l).select(0, n), DType::f64);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += one.data<double>()[i];
    }
  }
  for (double& x : sum) x /= count;
  const ConstTensorView mean(sum.data(), {all.extent(2), all.extent(3)});
  return Tensor::copy_of(mean, DType::f32);
}

}  // namespace polyhead::app
