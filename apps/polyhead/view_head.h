// The attention map that `view` shows: which head it is of, and its numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/tensor.h"

namespace polyhead::app {

// The attention map to show: one head, the mean over a layer's heads, or the mean over all heads.
struct HeadChoice {
  std::optional<std::int64_t> layer;   // absent: the map is the mean over all layers
  std::optional<std::int64_t> head;    // absent: the map is the mean over the heads
  std::int64_t layers = 0, heads = 0;  // how many layers and heads the model has
  bool of_text = false;                // true if telling_head() chose layer and head

  std::string description() const;  // such as "layer 5, mean of its 12 heads"
};

// Returns the choice that the options make. Without options it is the mean over the heads of the last layer; with --mean alone, the mean over all heads of all
// layers. UsageError if the model has no such layer or head.
HeadChoice choose_head(std::optional<std::int64_t> layer, std::optional<std::int64_t> head, bool mean, std::int64_t layers,
                       std::int64_t heads);

// The head whose words look most strongly at one other word of the text. The score of a head is the largest attention weight of each query, averaged over the queries.
// Special tokens do not count. If queries and keys are the same text, three more kinds of keys do not count: the query itself and its neighbours, because heads that
// look at a fixed distance would win, and the first token, because heads that have nothing to look at put their weight there. Returns `otherwise` if no pair is left.
// attentions: [L,N,T,S], floating. queries, keys: for each row and column whether it is a special token.
HeadChoice telling_head(const Tensor& attentions, const std::vector<bool>& queries, const std::vector<bool>& keys, bool same_text, const HeadChoice& otherwise);

// The chosen map [T,S], float32. attentions: [L,N,T,S], floating. norms: [L,N,S], those of the transformed values, for a norm-weighted map (Kobayashi et al.
// 2020); empty for a map of attention weights.
Tensor chosen_map(const Tensor& attentions, ConstTensorView norms, const HeadChoice& choice);

inline constexpr std::string_view kNormWeighted = "attention weights times the norms of the transformed values";
// The map divided by its largest element, for drawings in percent. A copy of the map if no element is above 0.
Tensor in_units_of_largest(const Tensor& map);
std::string largest_text(const Tensor& map);

}  // namespace polyhead::app
