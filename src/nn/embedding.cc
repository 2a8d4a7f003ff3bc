#include "polyhead/nn/embedding.h"

#include <algorithm>
#include <numeric>

#include "core/index.h"
#include "core/parallel.h"
#include "nn/check.h"
#include "nn/initialise.h"
#include "nn/rows.h"

namespace polyhead::nn {
namespace {

// All ids in row-major order, each known to be in [0, count).
std::vector<std::int64_t> checked_ids(const char* operation, ConstTensorView ids, std::int64_t count) {
  require(static_cast<bool>(ids), operation, ": ids is missing");
  require(ids.dtype() == DType::i64 || ids.dtype() == DType::i32, operation, ": ids is ", ids.dtype(), "; it must be int64 or int32");
  std::vector<std::int64_t> values;
  values.reserve(static_cast<std::size_t>(ids.numel()));
  const auto read = [&](const auto* data) {
    for_each_offset<1>(ids.shape(), {ids.strides()}, [&](const auto& at) { values.push_back(data[at[0]]); });
  };
  ids.dtype() == DType::i64 ? read(ids.data<std::int64_t>()) : read(ids.data<std::int32_t>());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (0 <= values[i] && values[i] < count) continue;
    fail(ErrorCode::invalid_argument, operation, ": ids", position_at(ids.shape(), static_cast<std::int64_t>(i)), " is ", values[i],
         "; ids must be in [0,", count, ")");
  }
  return values;
}

Shape output_shape(ConstTensorView ids, std::int64_t width) {
  Shape shape = ids.shape();
  shape.push_back(width);
  return shape;
}

// Groups the rows of d_y by id, so that one thread sums each row of the gradient, in float32 or float64.
template <class T>
void gather_gradients(const std::vector<std::int64_t>& ids, ConstTensorView d_y_view, TensorView d_weight_view, Executor* executor) {
  using A = Accumulator<T>;
  const Rows<const T> d_y(d_y_view);
  const Rows<T> d_weight(d_weight_view);
  const std::int64_t width = d_y_view.extent(-1);
  std::vector<std::int64_t> order(ids.size());
  std::iota(order.begin(), order.end(), 0);
  const auto id = [&](std::int64_t i) { return ids[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return ids[static_cast<std::size_t>(a)] < ids[static_cast<std::size_t>(b)]; });
  const auto count = static_cast<std::int64_t>(order.size());
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i == 0 || id(i) != id(i - 1)) starts.push_back(i);
  }
  starts.push_back(count);
  parallel_for(static_cast<std::int64_t>(starts.size()) - 1, row_grain(width, 2), executor, [&](std::int64_t first, std::int64_t last) {
    std::vector<A> total(static_cast<std::size_t>(width));
    for (auto group = static_cast<std::size_t>(first); group < static_cast<std::size_t>(last); ++group) {
      std::fill(total.begin(), total.end(), A{0});
      for (std::int64_t i = starts[group]; i < starts[group + 1]; ++i) {
        const std::int64_t row = order[static_cast<std::size_t>(i)];
        for (std::int64_t e = 0; e < width; ++e) total[static_cast<std::size_t>(e)] += load(d_y.at(row, e));
      }
      const std::int64_t target = id(starts[group]);
      for (std::int64_t e = 0; e < width; ++e) d_weight.at(target, e) = store<T>(total[static_cast<std::size_t>(e)]);
    }
  });
}

}  // namespace

Embedding::Embedding(const EmbeddingConfig& config) {
  require(config.count >= 1 && config.width >= 1, "Embedding: count is ", config.count, " and width ", config.width,
          "; both must be at least 1");
  require(is_floating(config.dtype), "Embedding: the parameters must be floating, not ", config.dtype);
  weight = Tensor(config.dtype, {config.count, config.width});
  Initialiser(config.seed).normal(weight, 0, 1);
}

Embedding::Embedding(Tensor weight_) : weight(std::move(weight_)) { require_weight("Embedding", weight, 2, "[count,width]"); }

Embedding Embedding::zeros() const {
  Embedding zeros;
  zeros.weight = zeros_like(weight);
  return zeros;
}

void Embedding::forward(ConstTensorView ids, TensorView y, const EmbeddingOptions& options) const {
  constexpr const char* kOperation = "Embedding.forward";
  require_weight(kOperation, weight, 2, "[count,width]");
  const std::vector<std::int64_t> rows = checked_ids(kOperation, ids, count());
  require_tensor(kOperation, {"y", y}, weight.dtype());
  require_shape(kOperation, {"y", y}, output_shape(ids, width()));
  require_separate(kOperation, {"y", y}, {{"ids", ids}, {"weight", weight}});
  dispatch_floating(weight.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Rows<const T> source(weight);
    const Rows<T> target(y);
    const bool add = options.write == Write::add;
    const std::int64_t columns = width();
    const bool in_lines = source.contiguous() && target.contiguous() && columns > 0;
    parallel_for(target.count(), row_grain(columns, 1), options.executor, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        const std::int64_t id = rows[static_cast<std::size_t>(row)];
        if (in_lines) {
          const T* from = &source.at(id, 0);
          T* to = &target.at(row, 0);
          if (!add) {
            std::copy_n(from, columns, to);
          } else {
            for (std::int64_t e = 0; e < columns; ++e) to[e] = store<T>(load(to[e]) + load(from[e]));
          }
          continue;
        }
        for (std::int64_t e = 0; e < columns; ++e) {
          const T value = source.at(id, e);
          T& to = target.at(row, e);
          to = add ? store<T>(load(to) + load(value)) : value;
        }
      }
    });
  });
}

void Embedding::backward(ConstTensorView ids, ConstTensorView d_y, const Gradients& gradients, const RunOptions& options) const {
  constexpr const char* kOperation = "Embedding.backward";
  require_weight(kOperation, weight, 2, "[count,width]");
  const std::vector<std::int64_t> rows = checked_ids(kOperation, ids, count());
  require_tensor(kOperation, {"d_y", d_y}, weight.dtype());
  require_shape(kOperation, {"d_y", d_y}, output_shape(ids, width()));
  Embedding* const grads = gradients.parameters;
  if (grads == nullptr) return;
  require_gradients(kOperation, *this, *grads, {{"ids", ids}, {"d_y", d_y}});
  fill(grads->weight, 0);
  dispatch_floating(weight.dtype(),
                    [&](auto type) { gather_gradients<typename decltype(type)::type>(rows, d_y, grads->weight, options.executor); });
}

}  // namespace polyhead::nn
