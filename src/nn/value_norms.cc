#include "polyhead/nn/value_norms.h"

#include <algorithm>
#include <cmath>

#include "core/index.h"
#include "cpu/gemm/gemm.h"
#include "nn/check.h"

namespace polyhead::nn {
namespace {

constexpr const char* kNorms = "value_norms";
constexpr std::int64_t kBlock = 64;  // number of keys whose transformed values are in memory at once

template <class View>
View at(View view, const Dims& place) {
  for (int i = 0; i < place.size(); ++i) view = view.select(0, place[i]);
  return view;
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
  const Shape lead = v.shape().first(v.rank() - 3);
  for (std::int64_t n = 0; n < heads; ++n) {
    const std::int64_t head = n / (heads / shared), out_width = projects ? output.out_width() : width;
    const ConstTensorView given = projects ? output.weight.view().slice(1, n * width, (n + 1) * width) : ConstTensorView();
    const Tensor converted = projects && given.dtype() != dtype ? Tensor::copy_of(given, dtype) : Tensor();
    // not copied: gemm takes any strides, and for few keys a copy would take longer than the product
    const ConstTensorView weight = converted ? ConstTensorView(converted) : given;
    for (std::int64_t i = 0; i < numel(lead); ++i) {
      const Dims place = position_at(lead, i);
      const ConstTensorView of_head = at(v, place).select(0, head);
      const TensorView norms = at(out, place).select(0, n);
      for (std::int64_t first = 0; first < keys; first += kBlock) {
        const std::int64_t last = std::min(keys, first + kBlock);
        // copied, because gemm needs operands of one dtype, and norm_of_row() needs adjacent elements
        const Tensor rows = Tensor::copy_of(of_head.slice(0, first, last), dtype);
        Tensor transformed = projects ? Tensor(dtype, {last - first, out_width}) : Tensor(), block(DType::f64, {last - first});
        if (projects) cpu::gemm({.a = rows, .b = weight.transpose(0, 1), .c = transformed}, options.executor, options.workspace);
        for (std::int64_t s = 0; s < last - first; ++s) block.data<double>()[s] = norm_of_row(projects ? transformed : rows, s, out_width);
        copy(block, norms.slice(0, first, last));
      }
    }
  }
}

void value_norms(std::span<const MultiHeadAttention* const> layers, ConstTensorView v, TensorView out, const RunOptions& options) {
  require(v && out && v.rank() >= 4 && out.rank() >= 3 && v.extent(0) == std::ssize(layers) && out.extent(0) == std::ssize(layers), kNorms, ": v is ", v.shape(), " and out ", out.shape(), " for ", layers.size(),
          " layers; they must be [L,*,K,S,V] and [L,*,N,S]");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    require(layers[i]->config.gate == Gate::none, kNorms, ": layer ", i, " has a gate, which multiplies the values differently for each query, so that a key has no single norm; use layers without a gate");
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
  const std::int64_t rows = map.extent(-2), keys = map.extent(-1);
  const Shape lead = map.shape().first(map.rank() - 2);
  for (std::int64_t i = 0; i < numel(lead); ++i) {  // the map is changed row by row, so that no second map [*,N,T,S] is needed
    const Dims place = position_at(lead, i);
    const Tensor factors = Tensor::copy_of(at(norms, place), DType::f64);
    const TensorView one = at(map, place);
    for (std::int64_t t = 0; t < rows; ++t) {
      Tensor row = Tensor::copy_of(one.select(0, t), DType::f64);
      double* const p = row.data<double>();
      for (std::int64_t s = 0; s < keys; ++s)
        if (p[s] != 0) p[s] *= factors.data<double>()[s];
      copy(row, one.select(0, t));
    }
  }
}

}  // namespace polyhead::nn
