// The attention map that `polyhead view` shows: of one head, the mean over a layer's heads, or the mean over all heads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "polyhead/tensor.h"

namespace polyhead::app {

struct HeadChoice {
  std::optional<std::int64_t> layer;   // absent: mean over all layers
  std::optional<std::int64_t> head;    // absent: mean over the heads
  std::int64_t layers = 0, heads = 0;  // of the model

  std::string description() const;  // "layer 5, mean of its 12 heads"
};

// Without options the mean over the heads of the last layer; with `mean` alone the mean over all heads of all layers. UsageError if the
// model has no such layer or head.
HeadChoice choose_head(std::optional<std::int64_t> layer, std::optional<std::int64_t> head, bool mean, std::int64_t layers,
                       std::int64_t heads);

// attentions [L,N,T,S] floating -> [T,S] float32.
Tensor chosen_map(const Tensor& attentions, const HeadChoice& choice);

}  // namespace polyhead::app
