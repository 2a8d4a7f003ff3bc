#include "polyhead/models/head_vectors.h"

#include <algorithm>

namespace polyhead::models {

std::optional<LayerRotations> layer_rotations(std::span<const nn::Rotary> layers) {
  const auto differs = [&](const nn::Rotary& layer) { return !layer.cos || layer.key_cos || layer.cos.rank() != 2 || layer.order != layers[0].order || layer.width != layers[0].width || layer.cos.shape() != layers[0].cos.shape(); };
  if (layers.empty() || std::ranges::any_of(layers, differs)) return std::nullopt;
  const bool shared = std::ranges::all_of(layers, [&](const nn::Rotary& layer) { return layer.cos.data() == layers[0].cos.data(); });
  const auto stacked = [&](ConstTensorView nn::Rotary::*table) {
    const ConstTensorView first = layers[0].*table;
    const std::int64_t count = shared ? 1 : std::ssize(layers);
    Tensor all(first.dtype(), {count, first.extent(0), first.extent(1)});
    for (std::int64_t i = 0; i < count; ++i) copy(layers[static_cast<std::size_t>(i)].*table, all.view().select(0, i));
    return all;
  };
  return LayerRotations{.cos = stacked(&nn::Rotary::cos), .sin = stacked(&nn::Rotary::sin), .order = layers[0].order, .width = layers[0].width};
}

}  // namespace polyhead::models
