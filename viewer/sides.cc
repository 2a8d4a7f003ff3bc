#include "viewer/sides.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "core/text.h"

namespace polyhead::viewer {
namespace {

using nlohmann::json;
using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;

// The largest number that the dtype rounds to 0. An attention weight of 0 may stand for any number up to this one.
double lost_below(DType dtype) {
  switch (dtype) {
    case DType::f64: return std::numeric_limits<double>::denorm_min() / 2;
    case DType::f32: return std::numeric_limits<float>::denorm_min() / 2.0;
    case DType::bf16: return std::ldexp(1.0, -134);  // half of 2^-133
    default: return std::ldexp(1.0, -25);            // float16: half of 2^-24
  }
}

void check_links(const Pairs& links, std::string_view what, const Shape& shape) {
  for (const auto& [query, key] : links)
    require(query >= 0 && query < shape[2] && key >= 0 && key < shape[3], "viewer::render: the ", what, " link (", query, ", ", key,
            ") is outside of attentions ", shape, " [layers,heads,T,S]; a link is (query below T, key below S)");
}

void check_image(const Image& image, const Text& set) {
  const ConstTensorView& pixels = image.pixels;
  require(pixels && (pixels.rank() == 2 || (pixels.rank() == 3 && pixels.extent(2) == 3)) && is_floating(pixels.dtype()) && pixels.numel() > 0, "viewer::render: the image is ", pixels.dtype(), " ", pixels.shape(), "; it must be floating and [height,width] or [height,width,3]");
  require(image.rows > 0 && image.columns > 0 && pixels.extent(0) % image.rows == 0 && pixels.extent(1) % image.columns == 0, "viewer::render: ",
          image.rows, " x ", image.columns, " patches do not divide the image ", pixels.shape(), ", which begins with height and width");
  require(!set.keys && !set.pooled, "viewer::render: an image is for self attention of single tokens; this set has ", set.keys ? "keys of its own" : "pooled maps");
  const auto special = std::ranges::count(set.queries.special, true), tokens = std::ssize(set.queries.pieces);
  require(tokens - special == image.rows * image.columns, "viewer::render: ", tokens, " tokens, ", special, " of them special, for ", image.rows, " x ",
          image.columns, " patches; each patch must have a token that is not special");
}

json to_json(const Image& image) {
  const Tensor pixels = Tensor::copy_of(image.pixels, DType::f32);
  std::vector<std::uint8_t> bytes;
  for (const float pixel : std::span(pixels.data<float>(), static_cast<std::size_t>(pixels.numel()))) {
    require(pixel >= 0 && pixel <= 1, "viewer::render: the image has the pixel ", pixel, "; pixels must be in [0, 1]");
    bytes.push_back(static_cast<std::uint8_t>(std::lround(255 * pixel)));
  }
  return {{"height", image.pixels.extent(0)}, {"width", image.pixels.extent(1)}, {"rows", image.rows}, {"columns", image.columns}, {"channels", image.pixels.rank() == 3 ? 3 : 1}, {"pixels", base64(bytes)}};
}

// Computes the row of attention weights that the model would have without the bias. A weight p of 0 may be a number up to `lost` that the dtype rounded to 0.
// Error if such a weight could be at least 1e-5 without the bias.
void remove_bias(std::span<const double> p, std::span<const double> bias, double lost, std::span<float> out, std::string_view where) {
  double largest = -std::numeric_limits<double>::infinity(), total = 0;
  for (std::size_t s = 0; s < p.size(); ++s) {
    total += p[s];
    if (p[s] > 0) largest = std::max(largest, std::log(p[s]) - bias[s]);
  }
  if (total == 0) return;  // all weights are 0: the query may attend to no key
  require(std::abs(total - 1) < 1e-2, "viewer::render: ", where, " sums to ", total, "; with a pair bias, rows of attention weights must sum to 1");
  double sum = 0;
  for (std::size_t s = 0; s < p.size(); ++s)
    if (p[s] > 0) sum += std::exp(std::log(p[s]) - bias[s] - largest);
  for (std::size_t s = 0; s < p.size(); ++s) {
    require(!std::isnan(bias[s]) && !(p[s] > 0 && std::isinf(bias[s])), "viewer::render: ", where, ", key ", s, " has the attention weight ", p[s],
            " at the pair bias ", bias[s], "; the pair bias must be finite there");
    if (p[s] > 0) out[s] = static_cast<float>(std::exp(std::log(p[s]) - bias[s] - largest) / sum);
    const bool masked = p[s] == 0 && bias[s] < -1e4;  // if the weight is 0, a large negative bias is a mask
    require(p[s] > 0 || masked || std::exp(std::log(lost) - bias[s] - largest) / sum < 1e-5, "viewer::render: ", where, ", key ", s,
            " has the attention weight 0 at the pair bias ", bias[s], ": too small for its dtype, so that the weight without the bias is unknown; "
            "give attention weights of a larger dtype, or -inf where the key is masked");
  }
}

}  // namespace

std::vector<const Text*> sets_of(const Text& text) {
  std::vector<const Text*> sets{&text};
  for (const Text& tab : text.tabs) sets.push_back(&tab);
  return sets;
}

std::vector<const Text*> sets_of(const Page& page) {
  std::vector<const Text*> sets;
  for (const Text& text : page.texts)
    for (const Text* set : sets_of(text)) {
      require(set == &text || set->tabs.empty(), "viewer::render: the tab '", set->name, "' has tabs; only a text has tabs");
      sets.push_back(set);
    }
  return sets;
}

std::int64_t numbers_of(const Text& set) { return set.attentions.numel() * (set.pair_bias ? 2 : 1) + set.gate.numel(); }

void check_sides(const Text& set) {
  const Shape& shape = set.attentions.shape();
  require(set.block_keys.empty() || std::ssize(set.block_keys) == shape[3], "viewer::render: block_keys has ", set.block_keys.size(),
          " flags for attentions ", shape, " [layers,heads,T,S]; it must have S = ", shape[3]);
  if (set.links) {
    check_links(set.links->sure, "sure", shape);
    check_links(set.links->possible, "possible", shape);
  }
  if (set.image) check_image(*set.image, set);
  if (set.pair_bias) {
    require(is_floating(set.pair_bias.dtype()) && set.pair_bias.shape() == shape, "viewer::render: pair_bias is ", set.pair_bias.dtype(), " ",
            set.pair_bias.shape(), "; it must be floating and as attentions, ", shape);
  }
  if (set.gate) {
    const Shape& gate = set.gate.shape();
    require(is_floating(set.gate.dtype()) && set.gate.rank() == 4 && gate[0] == shape[0] && gate[1] == shape[1] && gate[2] == shape[2],
            "viewer::render: gate is ", set.gate.dtype(), " ", gate, "; it must be floating and [layers,heads,T,V] = [", shape[0], ",", shape[1], ",",
            shape[2], ",V], as attentions ", shape);
  }
}

void add_sides(json& result, const Text& set, Encoding encoding) {
  if (!set.name.empty()) result["name"] = set.name;
  if (!set.query_axis.empty() || !set.key_axis.empty()) result["axes"] = {set.query_axis, set.key_axis};
  for (std::size_t s = 0; s < set.block_keys.size(); ++s)
    if (set.block_keys[s]) result["blocked"].push_back(s);
  if (set.image) result["image"] = to_json(*set.image);
  if (set.links) result["links"] = {{"sure", set.links->sure}, {"possible", set.links->possible}};
  if (!set.gate) return;
  result["gate_width"] = set.gate.extent(3);
  for (std::int64_t layer = 0; layer < set.gate.extent(0); ++layer) {
    json heads = json::array();
    for (std::int64_t head = 0; head < set.gate.extent(1); ++head) {
      const Tensor gate = Tensor::copy_of(set.gate.select(0, layer).select(0, head), DType::f32);
      const std::span numbers(gate.data<float>(), static_cast<std::size_t>(gate.numel()));
      for (const float number : numbers)
        require(!(number < -1e-3F || number > 1 + 1e-3F), "viewer::render: layer ", layer, ", head ", head, " has the gate ", number,
                "; gates must be in [0, 1], after the sigmoid");
      heads.push_back(encode(numbers, encoding));
    }
    result["gate"].push_back(std::move(heads));
  }
}

Tensor without_bias(const Text& set) {
  const Shape& shape = set.attentions.shape();
  Tensor result(DType::f32, shape);
  const auto rows = static_cast<std::size_t>(shape[2]), columns = static_cast<std::size_t>(shape[3]);
  for (std::int64_t layer = 0; layer < shape[0]; ++layer) {
    for (std::int64_t head = 0; head < shape[1]; ++head) {
      const Tensor p = Tensor::copy_of(set.attentions.select(0, layer).select(0, head), DType::f64);
      const Tensor bias = Tensor::copy_of(set.pair_bias.select(0, layer).select(0, head), DType::f64);
      float* out = result.data<float>() + static_cast<std::size_t>(layer * shape[1] + head) * rows * columns;
      for (std::size_t t = 0; t < rows; ++t) {
        const std::string where = "layer " + std::to_string(layer) + ", head " + std::to_string(head) + ", query " + std::to_string(t);
        remove_bias({p.data<double>() + t * columns, columns}, {bias.data<double>() + t * columns, columns}, lost_below(set.attentions.dtype()),
                    {out + t * columns, columns}, where);
      }
    }
  }
  return result;
}

}  // namespace polyhead::viewer
