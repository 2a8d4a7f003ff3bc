#include "viewer/vectors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "core/text.h"
#include "polyhead/tensor.h"
#include "viewer/encoding.h"

namespace polyhead::viewer {
namespace {

using nlohmann::json;

constexpr double kSlack = 5e-3;  // attention weights of a 16-bit model may differ by this much from those computed in float64 from the same q and k

Shape aligned(const ConstTensorView& view) {
  Shape shape = view.shape();
  while (shape.size() < 4) shape.insert(0, 1);
  return shape;
}

void check_vectors(const ConstTensorView& view, std::string_view name, const ConstTensorView& attentions, std::int64_t positions,
                   std::string_view shape, std::int64_t width) {
  const bool fits = view.rank() == 4 && view.extent(0) == attentions.extent(0) && view.extent(2) == positions && (width < 0 || view.extent(3) == width);
  require(view && fits && is_floating(view.dtype()), "viewer::render: ", name, " is ", view.dtype(), " ", view.shape(), " for attentions ",
          attentions.shape(), " [layers,heads,T,S]; it must be floating and ", shape);
}

void check_pairs(const ConstTensorView& view, std::string_view name, const ConstTensorView& attentions, bool right_dtype, std::string_view dtype) {
  if (!view) return;
  bool fits = view.rank() <= 4;
  for (int axis = 0; fits && axis < 4; ++axis) fits = aligned(view)[axis] == 1 || aligned(view)[axis] == attentions.extent(axis);
  require(fits && right_dtype, "viewer::render: ", name, " is ", view.dtype(), " ", view.shape(), " for attentions ", attentions.shape(),
          " [layers,heads,T,S]; it must be ", dtype, " and broadcast to them");
}

ConstTensorView of_head(const ConstTensorView& vectors, std::int64_t layer, std::int64_t head, std::int64_t heads) {
  return vectors.select(0, layer).select(0, head / (heads / vectors.extent(1)));
}

// The attention weights [T,S] of one head in float64.
std::vector<double> weights_of(const HeadVectors& vectors, const ConstTensorView& attentions, std::int64_t layer, std::int64_t head) {
  const std::int64_t heads = attentions.extent(1), rows = attentions.extent(2), columns = attentions.extent(3), width = vectors.q.extent(3);
  const double scale = vectors.scale.value_or(1 / std::sqrt(static_cast<double>(width)));
  const Tensor q = Tensor::copy_of(of_head(vectors.q, layer, head, heads), DType::f64), k = Tensor::copy_of(of_head(vectors.k, layer, head, heads), DType::f64);
  const auto pairs = [&](const ConstTensorView& view, DType dtype) {
    return view ? Tensor::copy_of(view.expand(attentions.shape()).select(0, layer).select(0, head), dtype) : Tensor();
  };
  const Tensor bias = pairs(vectors.bias, DType::f64), attend = pairs(vectors.attend, DType::boolean);
  // These loops must be fast: a live page runs them after every keystroke.
  const double* const added = bias ? bias.data<double>() : nullptr;
  const bool* const open = attend ? attend.data<bool>() : nullptr;
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  std::vector<double> result(static_cast<std::size_t>(rows * columns));
  for (std::int64_t t = 0; t < rows; ++t) {
    double* const row = result.data() + t * columns;
    double largest = kNone, sum = 0;
    for (std::int64_t s = 0; s < columns; ++s) {
      const double *const query = q.data<double>() + t * width, *const key = k.data<double>() + s * width;
      double score = 0;
      for (std::int64_t i = 0; i < width; ++i) score += query[i] * key[i];
      row[s] = scale * score + (added ? added[t * columns + s] : 0);
      if (open && !open[t * columns + s]) row[s] = kNone;
      largest = std::isnan(row[s]) ? row[s] : std::max(largest, row[s]);
    }
    for (std::int64_t s = 0; s < columns; ++s) sum += row[s] = largest == kNone ? 0 : std::exp(row[s] - largest);
    for (std::int64_t s = 0; s < columns && sum != 0; ++s) row[s] /= sum;
  }
  return result;
}

// The elements of each layer and head as float32 in base64, low byte first. Booleans become 0 and 1.
json numbers_json(const ConstTensorView& view) {
  json layers = json::array();
  for (std::int64_t layer = 0; layer < view.extent(0); ++layer) {
    json heads = json::array();
    for (std::int64_t head = 0; head < view.extent(1); ++head) {
      const ConstTensorView part = view.select(0, layer).select(0, head);
      if (view.dtype() == DType::boolean) {
        const Tensor flags = Tensor::copy_of(part, DType::boolean);
        heads.push_back(base64(std::vector<float>(flags.data<bool>(), flags.data<bool>() + flags.numel())));
      } else {
        const Tensor values = Tensor::copy_of(part, DType::f32);
        heads.push_back(base64(std::span(values.data<float>(), static_cast<std::size_t>(values.numel()))));
      }
    }
    layers.push_back(std::move(heads));
  }
  return layers;
}

// Expands the last two dimensions of a bias or mask to T and S; the dimensions of layers and heads stay as they are.
ConstTensorView all_pairs(const ConstTensorView& view, const ConstTensorView& attentions) {
  const Shape given = aligned(view);
  return view.expand({given[0], given[1], attentions.extent(2), attentions.extent(3)});
}

}  // namespace

double megabytes(std::int64_t numbers) { return static_cast<double>(numbers) * 4 * 4 / 3 / 1e6; }

void check_shapes(const HeadVectors& vectors, const ConstTensorView& attentions) {
  const std::int64_t heads = attentions.extent(1);
  check_vectors(vectors.q, "q", attentions, attentions.extent(2), "[layers,heads,T,H]", -1);
  check_vectors(vectors.k, "k", attentions, attentions.extent(3), "[layers,K,S,H]", vectors.q.extent(3));
  require(vectors.q.extent(1) == heads, "viewer::render: q is ", vectors.q.shape(), "; it must have the ", heads, " heads of the attentions");
  const std::int64_t shared = vectors.k.extent(1);
  require(shared == heads || (shared > 0 && heads % shared == 0), "viewer::render: k is ", vectors.k.shape(), "; its heads must divide the ", heads, " heads of q");
  if (vectors.v) {
    check_vectors(vectors.v, "v", attentions, attentions.extent(3), "[layers,K,S,V]", -1);
    require(vectors.v.extent(1) == shared, "viewer::render: v is ", vectors.v.shape(), "; it must have the ", shared, " heads of k");
  }
  const auto check_rotary = [&](const ConstTensorView& table, std::string_view name) {
    const bool fits = table && table.rank() == 3 && is_floating(table.dtype()) && (table.extent(0) == 1 || table.extent(0) == attentions.extent(0)) && table.extent(1) == attentions.extent(2) && attentions.extent(2) == attentions.extent(3) && 2 * table.extent(2) <= vectors.q.extent(3);
    require(fits && table.shape() == vectors.rotary_cos.shape(), "viewer::render: ", name, " is ", table.dtype(), " ", table.shape(), " for q ", vectors.q.shape(), " and attentions ", attentions.shape(), "; rotary_cos and rotary_sin must be floating and [layers or 1,T,R/2] with R <= H and T = S");
  };
  if (vectors.rotary_cos || vectors.rotary_sin) check_rotary(vectors.rotary_cos, "rotary_cos"), check_rotary(vectors.rotary_sin, "rotary_sin");
  require(!vectors.scale || std::isfinite(*vectors.scale), "viewer::render: scale is ", vectors.scale.value_or(0), "; it must be finite");
  check_pairs(vectors.bias, "bias", attentions, is_floating(vectors.bias.dtype()), "floating");
  check_pairs(vectors.attend, "attend", attentions, vectors.attend.dtype() == DType::boolean, "bool");
}

void check_weights(const HeadVectors& vectors, const ConstTensorView& attentions) {
  for (std::int64_t layer = 0; layer < attentions.extent(0); ++layer) {
    for (std::int64_t head = 0; head < attentions.extent(1); ++head) {
      const std::vector<double> wanted = weights_of(vectors, attentions, layer, head);
      const Tensor given = Tensor::copy_of(attentions.select(0, layer).select(0, head), DType::f64);
      const double* const weights = given.data<double>();
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const double weight = weights[i];
        if (std::abs(weight - wanted[i]) <= kSlack || (std::isnan(weight) && std::isnan(wanted[i]))) continue;
        const std::size_t keys = static_cast<std::size_t>(attentions.extent(3));
        fail(ErrorCode::invalid_argument, "viewer::render: q and k of layer ", layer, ", head ", head, " give query ", i / keys, " the attention weight ", wanted[i],
             " of key ", i % keys, ", and the map has ", weight, "; they must belong to the map, with its scale, bias and mask");
      }
    }
  }
}

void check_norms(const ConstTensorView& norms, const ConstTensorView& attentions) {
  const Shape expected{attentions.extent(0), attentions.extent(1), attentions.extent(3)};
  require(is_floating(norms.dtype()) && norms.shape() == expected, "viewer::render: value_norms is ", norms.dtype(), " ", norms.shape(), " for attentions ", attentions.shape(), " [layers,heads,T,S]; it must be floating and [layers,heads,S]");
  const Tensor values = Tensor::copy_of(norms, DType::f64);
  for (std::int64_t i = 0; i < values.numel(); ++i)
    require(!(values.data<double>()[i] < 0), "viewer::render: value_norms has ", values.data<double>()[i], "; a norm is not negative");
}

json norms_json(const ConstTensorView& norms) { return numbers_json(norms); }

std::int64_t count_numbers(const HeadVectors& vectors, const ConstTensorView& attentions) {
  std::int64_t count = vectors.q.numel() + vectors.k.numel() + (vectors.v ? vectors.v.numel() : 0);
  if (vectors.rotary_cos) count += vectors.rotary_cos.numel() + vectors.rotary_sin.numel();
  for (const ConstTensorView& view : {vectors.bias, vectors.attend})
    if (view) count += all_pairs(view, attentions).numel();
  return count;
}

json to_json(const HeadVectors& vectors, const ConstTensorView& attentions) {
  json result{{"scale", vectors.scale.value_or(1 / std::sqrt(static_cast<double>(vectors.q.extent(3))))}, {"root", !vectors.scale}, {"q", numbers_json(vectors.q)}, {"k", numbers_json(vectors.k)}};
  if (vectors.v) result["v"] = numbers_json(vectors.v);
  if (vectors.bias) result["bias"] = numbers_json(all_pairs(vectors.bias, attentions));
  if (vectors.rotary_cos) {
    result["rotary"] = {{"cos", numbers_json(vectors.rotary_cos.unsqueeze(1))}, {"sin", numbers_json(vectors.rotary_sin.unsqueeze(1))}, {"neighbours", vectors.rotary_neighbours}};
  }
  if (vectors.attend) result["attend"] = numbers_json(all_pairs(vectors.attend, attentions));
  return result;
}

bool VectorBudget::take(std::int64_t numbers) {
  const double bytes = megabytes(numbers) * 1e6;
  if (bytes > bytes_) return false;
  bytes_ -= bytes;
  return true;
}

}  // namespace polyhead::viewer
