#include "view_head.h"

#include <algorithm>
#include <cmath>

#include "command.h"
#include "core/text.h"
#include "format.h"
#include "polyhead/nn/value_norms.h"

namespace polyhead::app {

std::string HeadChoice::description() const {
  if (of_text) return cat("layer ", *layer, ", head ", *head, ", which looks most at single other words of all ", layers * heads, " heads");
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

HeadChoice telling_head(const Tensor& attentions, const std::vector<bool>& queries, const std::vector<bool>& keys, bool same_text, const HeadChoice& otherwise) {
  const ConstTensorView all = attentions.view();
  require(all.extent(2) == std::ssize(queries) && all.extent(3) == std::ssize(keys), "telling_head: ", queries.size(), " queries and ", keys.size(), " keys for attentions ", all.shape());
  const auto counts = [&](std::size_t t, std::size_t s) {
    if (queries[t] || keys[s]) return false;
    return !same_text || (s != 0 && (t > s + 1 || s > t + 1));
  };
  HeadChoice best = otherwise;
  double most = 0;
  for (std::int64_t layer = 0; layer < all.extent(0); ++layer)
    for (std::int64_t head = 0; head < all.extent(1); ++head) {
      const Tensor map = Tensor::copy_of(all.select(0, layer).select(0, head), DType::f64);
      double sum = 0;
      for (std::size_t t = 0; t < queries.size(); ++t) {
        double largest = 0;  // std::max ignores a NaN weight
        for (std::size_t s = 0; s < keys.size(); ++s)
          if (counts(t, s)) largest = std::max(largest, map.data<double>()[t * keys.size() + s]);
        sum += largest;
      }
      if (sum <= most) continue;  // all heads have the same number of queries, so sums rank like means
      most = sum;
      best.layer = layer, best.head = head, best.of_text = true;
    }
  return best;
}

Tensor chosen_map(const Tensor& attentions, ConstTensorView norms, const HeadChoice& choice) {
  const ConstTensorView all = attentions.view();
  const std::int64_t first_layer = choice.layer.value_or(0), last_layer = choice.layer ? first_layer + 1 : choice.layers;
  const std::int64_t first_head = choice.head.value_or(0), last_head = choice.head ? first_head + 1 : choice.heads;
  const auto count = static_cast<double>((last_layer - first_layer) * (last_head - first_head));
  std::vector<double> sum(static_cast<std::size_t>(all.extent(2) * all.extent(3)));
  for (std::int64_t l = first_layer; l < last_layer; ++l) {
    for (std::int64_t n = first_head; n < last_head; ++n) {
      Tensor one = Tensor::copy_of(all.select(0, l).select(0, n), DType::f64);
      if (norms) nn::weight_by_norms(norms.select(0, l).slice(0, n, n + 1), one.view().unsqueeze(0));
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += one.data<double>()[i];
    }
  }
  for (double& x : sum) x /= count;
  const ConstTensorView mean(sum.data(), {all.extent(2), all.extent(3)});
  return Tensor::copy_of(mean, DType::f32);
}

namespace {

float largest_of(const Tensor& map) {
  float largest = 0;
  for (std::int64_t i = 0; i < map.numel(); ++i) largest = std::isfinite(map.data<float>()[i]) ? std::max(largest, map.data<float>()[i]) : largest;
  return largest;
}

}  // namespace

Tensor in_units_of_largest(const Tensor& map) {
  Tensor scaled = Tensor::copy_of(map);
  const float largest = largest_of(map);
  for (std::int64_t i = 0; largest > 0 && i < scaled.numel(); ++i) scaled.data<float>()[i] /= largest;
  return scaled;
}

std::string largest_text(const Tensor& map) { return fixed(largest_of(map), 4); }

}  // namespace polyhead::app
