// Attention rollout: rows x of the result are multiplied by the matrix A_l of one layer after the other, from the last layer to the first. If fewer than half
// of all rows are wanted, the backward pass computes the product of x with the attention weights p. It is the gradient of the values, d_v = pᵀ d_out with d_out
// = xᵀ (docs/maths.md, eq. 5), so no map is stored. If more rows are wanted, they need as much memory as a map, so A_l is stored as a matrix. A_l is also
// stored if a score rule has no backward function.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/dispatch.h"
#include "core/index.h"
#include "core/overlap.h"
#include "cpu/gemm/gemm.h"
#include "polyhead/maps.h"
#include "polyhead/tensor.h"
#include "sdpa/normal_form.h"

namespace polyhead {
namespace {

constexpr const char* kOperation = "attention_rollout";
constexpr std::int64_t kRows = 256;  // number of rows of the result that are computed at a time

// A tensor or, if its dtype is narrower than float32, a float32 copy of it. The copy is needed because the backward pass stores gradients in the dtype of k, so
// a narrow k would round the result.
class Widened {
 public:
  explicit Widened(ConstTensorView given, ConstTensorView scale = {}) : view_(given) {
    if (!given || given.dtype() == DType::f32 || given.dtype() == DType::f64) return;
    memory_ = Tensor(DType::f32, given.shape());
    view_ = memory_;
    if (!scale) {
      copy(given, memory_);
      return;
    }
    const std::int64_t width = given.extent(-1);
    const Shape rows = given.shape().first(given.rank() - 1);
    float* to = memory_.data<float>();
    for_each_offset(rows, std::array{given.strides().first(given.rank() - 1), scale.strides()}, [&](const std::array<std::int64_t, 2>& at) {
      const float factor = static_cast<const float*>(scale.data())[at[1]];
      for (std::int64_t d = 0; d < width; ++d) *to++ = factor * static_cast<float>(static_cast<const std::int8_t*>(given.data())[at[0] + d * given.stride(-1)]);
    });
  }
  const ConstTensorView& view() const { return view_; }

 private:
  Tensor memory_;
  ConstTensorView view_;
};

// Replaces x [lead, R, T] by x A_l, where A_l = residual I + (1 - residual) (mean over heads of p) with each row divided by its sum.
void multiply(const MapsInput& layer, const SdpaOptions& options, double residual, const Shape& lead, Tensor& x) {
  const Widened q(layer.q), k(layer.k, layer.k_scale);
  const DType dtype = q.view().dtype();
  const std::int64_t heads = layer.q.extent(-3), kv_heads = layer.k.extent(-3), positions = layer.q.extent(-2), rows = x.extent(-2);
  Tensor one(dtype, {1}), zero(dtype, {1});
  fill(one, 1);
  // With values that are all 1, the output of attention is the sum of each row of p. This is 1 minus the sink's attention weight, or 0 for an empty row.
  Tensor sums(dtype, appended(lead, {heads, positions, 1})), lse(dtype, appended(lead, {heads, positions}));
  sdpa_forward({.q = q.view(), .k = k.view(), .v = one.view().expand(appended(lead, {kv_heads, positions, 1})), .out = sums, .lse = lse}, options);

  const std::int64_t batch = numel(lead);
  dispatch_floating(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (sizeof(T) >= 4) {
      T* const of_x = x.data<T>();
      for (std::int64_t b = 0; b < batch; ++b) {
        for (std::int64_t t = 0; t < positions; ++t) {
          double mean = 0;
          for (std::int64_t n = 0; n < heads; ++n) mean += static_cast<double>(sums.data<T>()[(b * heads + n) * positions + t]) / static_cast<double>(heads);
          const double sum = residual + (1 - residual) * mean;
          for (std::int64_t r = 0; r < rows; ++r) {
            T& element = of_x[(b * rows + r) * positions + t];
            element = sum == 0 ? T{0} : static_cast<T>(static_cast<double>(element) / sum);
          }
        }
      }
      // All heads have the same gradient of the output: d_out[n,t,r] = x[r,t].
      const ConstTensorView d_out = ConstTensorView(x).transpose(-1, -2).unsqueeze(-3).expand(appended(lead, {heads, positions, rows}));
      Tensor product(dtype, appended(lead, {kv_heads, positions, rows}));
      sdpa_backward({.q = q.view(), .k = k.view(), .v = zero.view().expand(product.shape()), .out = zero.view().expand(d_out.shape()), .lse = lse, .d_out = d_out,
                     .d_q = {}, .d_k = {}, .d_v = product}, options);
      for (std::int64_t b = 0; b < batch; ++b) {
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t s = 0; s < positions; ++s) {
            double sum = 0;
            for (std::int64_t n = 0; n < kv_heads; ++n) sum += static_cast<double>(product.data<T>()[((b * kv_heads + n) * positions + s) * rows + r]);
            T& element = of_x[(b * rows + r) * positions + s];
            element = static_cast<T>(residual * static_cast<double>(element) + (1 - residual) / static_cast<double>(heads) * sum);
          }
        }
      }
    }
  });
}

// Returns A_l [lead, positions, positions] in type T.
template <class T>
Tensor mixing_matrix(const MapsInput& layer, const SdpaOptions& options, double residual, const Shape& lead) {
  const std::int64_t heads = layer.q.extent(-3), positions = layer.q.extent(-2), batch = numel(lead);
  Tensor matrix(DTypeOf<T>::value, appended(lead, {positions, positions}));
  // Number of rows of p that are computed at a time, so that the rows of all heads need about as much memory as the result. It is at least 64, because each
  // call packs the keys, which takes as long as computing about 10 rows.
  const std::int64_t chunk = std::clamp<std::int64_t>(positions / std::max<std::int64_t>(heads, 1), 64, kRows);
  std::vector<double> mixed(static_cast<std::size_t>(positions));
  for (std::int64_t first = 0; first < positions; first += chunk) {
    const std::int64_t count = std::min(chunk, positions - first);
    std::vector<std::int64_t> queries(static_cast<std::size_t>(count));
    std::iota(queries.begin(), queries.end(), first);
    Tensor maps = Tensor::uninitialised(DTypeOf<T>::value, appended(lead, {heads, count, positions}));
    attention_map_rows({.q = layer.q, .k = layer.k, .k_scale = layer.k_scale}, queries, maps, options);
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t t = first + i;
        std::fill(mixed.begin(), mixed.end(), 0.0);
        for (std::int64_t n = 0; n < heads; ++n) {
          const T* p = maps.data<T>() + ((b * heads + n) * count + i) * positions;
          for (double& x : mixed) x += static_cast<double>(*p++);
        }
        double sum = 0;
        for (double& x : mixed) x *= (1 - residual) / static_cast<double>(heads);
        mixed[static_cast<std::size_t>(t)] += residual;
        for (const double x : mixed) sum += x;
        const double factor = sum == 0 ? 0 : 1 / sum;
        T* row = matrix.data<T>() + (b * positions + t) * positions;
        for (const double x : mixed) *row++ = static_cast<T>(x * factor);
      }
    }
  }
  return matrix;
}

// Computes the result as a product of the stored matrices A_l. Used if half of all rows or more are wanted, or if a score rule has no backward function.
template <class T>
Tensor product_of_matrices(std::span<const MapsInput> layers, std::span<const std::int64_t> queries, const SdpaOptions& options, double residual, const Shape& lead) {
  const std::int64_t positions = layers.front().q.extent(-2), count = std::ssize(queries), batch = numel(lead);
  const auto& progress = layers.front().progress;
  Tensor x;
  for (std::int64_t l = std::ssize(layers) - 1; l >= 0; --l) {
    const Tensor matrix = mixing_matrix<T>(layers[static_cast<std::size_t>(l)], options, residual, lead);
    Tensor next = Tensor::uninitialised(DTypeOf<T>::value, appended(lead, {count, positions}));
    const ConstTensorView of_batch = matrix.view().reshape({batch, positions, positions});
    for (std::int64_t b = 0; b < batch; ++b) {
      const TensorView to = next.view().reshape({batch, count, positions}).select(0, b);
      if (x) {
        cpu::gemm({.a = ConstTensorView(x.view()).reshape({batch, count, positions}).select(0, b), .b = of_batch.select(0, b), .c = to}, options.executor, options.workspace);
      } else {
        for (std::int64_t r = 0; r < count; ++r) copy(of_batch.select(0, b).select(0, queries[static_cast<std::size_t>(r)]), to.select(0, r));
      }
    }
    x = std::move(next);
    if (progress) progress(std::ssize(layers) - l, std::ssize(layers));
  }
  return x;
}

}  // namespace

void attention_rollout(std::span<const MapsInput> layers, std::span<const std::int64_t> queries, TensorView out, const SdpaOptions& options, double residual) {
  require(!layers.empty(), kOperation, ": there are no layers");
  require(residual >= 0 && residual <= 1, kOperation, ": residual is ", residual, "; it must lie in [0,1]");
  std::vector<Operand> inputs;
  add_option_tensors(options, inputs);
  Shape lead;
  std::int64_t positions = 0;
  bool wide = true;
  for (const MapsInput& layer : layers) {
    ProblemMemory memory;
    const MapsProblem p = normal_form(layer, options, MapValue::probability, kOperation, memory);
    require(p.queries == p.keys, kOperation, ": q is ", layer.q.shape(), ", k ", layer.k.shape(), "; self-attention has T = S");
    const bool first = &layer == &layers.front();
    require(first || (p.queries == positions && p.lead == lead), kOperation, ": q of a layer is ", layer.q.shape(), ", that of the first ", layers.front().q.shape(),
            "; all layers must have the same leading dimensions and T, only N and H may differ");
    require(layer.q.dtype() == layers.front().q.dtype(), kOperation, ": q of a layer is ", layer.q.dtype(), ", that of the first ", layers.front().q.dtype());
    lead = p.lead, positions = p.queries, wide = p.dtype == DType::f64;
    for (const Operand& operand : {Operand{"q", layer.q}, Operand{"k", layer.k}, Operand{"k_scale", layer.k_scale}}) inputs.push_back(operand);
  }
  for (const std::int64_t t : queries) require(0 <= t && t < positions, kOperation, ": there is no query ", t, "; queries lie in [0,", positions, ")");
  const auto count = static_cast<std::int64_t>(queries.size());
  const Shape wanted = appended(lead, {count, positions});
  require(static_cast<bool>(out), kOperation, ": out is missing");
  require(out.shape() == wanted, kOperation, ": out is ", out.shape(), "; it must be [*,R,T] = ", wanted);
  require(is_floating(out.dtype()), kOperation, ": out is ", out.dtype(), "; it must be floating");
  const Operand output{"out", out};
  require_no_overlap(kOperation, {&output, 1}, inputs);
  if (out.numel() == 0) return;

  SdpaOptions plain = options;
  plain.dropout = {};  // rollout uses attention weights before dropout
  // If true, multiply() cannot be used, because it runs the backward pass.
  const bool no_gradient = options.score_rule && options.score_rule.backward == nullptr;
  if (2 * count >= positions || no_gradient) {
    const Tensor all = wide ? product_of_matrices<double>(layers, queries, plain, residual, lead) : product_of_matrices<float>(layers, queries, plain, residual, lead);
    return copy(all, out);
  }
  const Widened bias(options.bias), sink(options.sink), slopes(options.relative_bias.slopes), table(options.relative_bias.table);
  plain.bias = bias.view(), plain.sink = sink.view(), plain.relative_bias.slopes = slopes.view(), plain.relative_bias.table = table.view();
  const auto& progress = layers.front().progress;
  const std::int64_t steps = (count + kRows - 1) / kRows * static_cast<std::int64_t>(layers.size());
  std::int64_t done = 0;
  for (std::int64_t first = 0; first < count; first += kRows) {
    const std::int64_t last = std::min(first + kRows, count);
    Tensor x(wide ? DType::f64 : DType::f32, appended(lead, {last - first, positions}));
    for (std::int64_t r = first; r < last; ++r) fill(x.view().select(-2, r - first).select(-1, queries[static_cast<std::size_t>(r)]), 1);
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
      multiply(*layer, plain, residual, lead, x);
      if (progress) progress(++done, steps);
    }
    copy(x, out.slice(-2, first, last));
  }
}

}  // namespace polyhead
