#include "polyhead/nn/value_norms.h"

#include <algorithm>
#include <cmath>

#include "cpu/gemm/gemm.h"
#include "nn/check.h"

namespace polyhead::nn {
namespace {

constexpr const char* kNorms = "value_norms";
constexpr std::int64_t kBlock = 64;  // keys whose transformed values are in memory at once

// Flattens the leading dimensions: [*,...] -> [B,...], with the last `kept` dimensions as they are. A copy, because any strides are allowed.
Tensor flat(ConstTensorView view, int kept, DType dtype) {
  Shape shape{numel(view.shape().first(view.rank() - kept))};
  for (int i = view.rank() - kept; i < view.rank(); ++i) shape.push_back(view.extent(i));
  Tensor copied = Tensor::copy_of(view, dtype);
  return Tensor::share(copied.view().reshape(shape), copied.owner());
}

template <class T>
double norm_of(const T* row, std::int64_t width) {
  double sum = 0;
  for (std::int64_t i = 0; i < width; ++i) sum += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  return std::sqrt(sum);
}

double norm_of_row(const Tensor& rows, std::int64_t row, std::int64_t width) {
  return rows.dtype() == DType::f64 ? norm_of(rows.data<double>() + row * width, width) : norm_of(rows.data<float>() + row * width, width);
}

}  // namespace

void value_norms(ConstTensorView v, const Linear& output, TensorView out, const RunOptions& options) {
  require(v && v.rank() >= 3 && is_floating(v.dtype()), kNorms, ": v is ", v.dtype(), " ", v.shape(), "; it must be floating and [*,K,S,V]");
  require(out && out.rank() == v.rank() - 1 && is_floating(out.dtype()), kNorms, ": out is ", out.dtype(), " ", out.shape(), "; it must be floating and [*,N,S], with v ", v.shape());
  const std::int64_t heads = out.extent(-2), shared = v.extent(-3), keys = v.extent(-2), width = v.extent(-1);
  Shape expected = v.shape().first(v.rank() - 1);
  expected[-2] = heads;
  require_shape(kNorms, {"out", out}, expected);
  require(shared > 0 ? heads % shared == 0 : heads == 0, kNorms, ": out is ", out.shape(), " and v ", v.shape(), "; the ", heads, " heads must be a multiple of the ", shared, " of v");
  const bool projects = static_cast<bool>(output.weight);
  if (projects) {
    require_weight(kNorms, output.weight, 2, "[E,N*V]");
    require(output.in_width() == heads * width, kNorms, ": the output projection's weight is ", output.weight.shape(), "; it must be [E,N*V] with N*V = ", heads, " * ", width, " = ", heads * width);
  }
  require_no_overlap(kNorms, {"out", out}, {{"v", v}, {"weight", output.weight}});
  const bool precise = v.dtype() == DType::f64 || (projects && output.weight.dtype() == DType::f64);
  const DType dtype = precise ? DType::f64 : DType::f32;
  const Tensor values = flat(v, 3, dtype);
  const std::int64_t batch = values.extent(0);
  Tensor norms(DType::f64, {batch, heads, keys});
  for (std::int64_t n = 0; n < heads; ++n) {
    const std::int64_t head = n / (heads / shared), out_width = projects ? output.out_width() : width;
    const Tensor weight = projects ? Tensor::copy_of(output.weight.view().slice(1, n * width, (n + 1) * width), dtype) : Tensor();
    for (std::int64_t b = 0; b < batch; ++b) {
      const ConstTensorView of_head = values.view().select(0, b).select(0, head);
      for (std::int64_t first = 0; first < keys; first += kBlock) {
        const ConstTensorView rows = of_head.slice(0, first, std::min(keys, first + kBlock));
        Tensor transformed(dtype, {rows.extent(0), out_width});
        if (projects) {
          cpu::gemm({.a = rows, .b = weight.view().transpose(0, 1), .c = transformed}, options.executor, options.workspace);
        } else {
          copy(rows, transformed);
        }
        for (std::int64_t s = 0; s < rows.extent(0); ++s) norms.data<double>()[(b * heads + n) * keys + first + s] = norm_of_row(transformed, s, out_width);
      }
    }
  }
  copy(norms.view().reshape(expected), out);
}

void value_norms(std::span<const MultiHeadAttention* const> layers, ConstTensorView v, TensorView out, const RunOptions& options) {
  require(v && out && v.rank() >= 4 && out.rank() >= 3 && v.extent(0) == std::ssize(layers) && out.extent(0) == std::ssize(layers), kNorms, ": v is ", v.shape(), " and out ", out.shape(), " for ", layers.size(),
          " layers; they must be [L,*,K,S,V] and [L,*,N,S]");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    require(layers[i]->config.gate == Gate::none, kNorms, ": layer ", i, " has a gate, which multiplies each query's values by other numbers, so that a key has no one norm; layers without a gate have");
    const auto at = static_cast<std::int64_t>(i);
    value_norms(v.select(0, at), layers[i]->output, out.select(0, at), options);
  }
}

void weight_by_norms(ConstTensorView norms, TensorView map) {
  constexpr const char* kOperation = "weight_by_norms";
  require(map && map.rank() >= 3 && is_floating(map.dtype()), kOperation, ": map is ", map.dtype(), " ", map.shape(), "; it must be floating and [*,N,T,S]");
  Shape expected = map.shape();
  expected.erase(expected.size() - 2);
  require_shape(kOperation, {"norms", norms}, expected);
  require(is_floating(norms.dtype()), kOperation, ": norms is ", norms.dtype(), "; it must be floating");
  require_no_overlap(kOperation, {"map", map}, {{"norms", norms}});
  const Tensor factors = flat(norms, 1, DType::f64);
  const std::int64_t heads = factors.extent(0), rows = map.extent(-2), keys = map.extent(-1);
  // Row by row, so that a map [*,N,T,S] is never held twice.
  Shape lead = map.shape().first(map.rank() - 2), place = lead;
  for (int i = 0; i < place.size(); ++i) place[i] = 0;
  for (std::int64_t head = 0; head < heads; ++head) {
    TensorView one = map;
    for (int i = 0; i < place.size(); ++i) one = one.select(0, place[i]);
    const double* const factor = factors.data<double>() + head * keys;
    for (std::int64_t t = 0; t < rows; ++t) {
      Tensor row = Tensor::copy_of(one.select(0, t), DType::f64);
      double* const p = row.data<double>();
      for (std::int64_t s = 0; s < keys; ++s)
        if (p[s] != 0) p[s] *= factor[s];
      copy(row, one.select(0, t));
    }
    for (int i = place.size(); i-- > 0;) {
      if (++place[i] < lead[i]) break;
      place[i] = 0;
    }
  }
}

}  // namespace polyhead::nn
