#include "polyhead/nn/embedding.h"

#include <algorithm>
#include <numeric>

#include "core/parallel.h"
#include "nn/check.h"
#include "nn/ids.h"
#include "nn/initialiser.h"
#include "nn/rows.h"

namespace polyhead::nn {
namespace {

// Adds the gradients of all rows to d_weight. Rows of d_y are grouped by id, so that one thread sums each row of d_weight, in float32 or float64.
template <class T>
void gather_gradients(const std::vector<std::int64_t>& ids, ConstTensorView d_y_view, TensorView d_weight_view, Executor* executor) {
  using A = Accumulator<T>;
  const Rows<const T> d_y(d_y_view);
  const Rows<T> d_weight(d_weight_view);
  const std::int64_t width = d_y_view.extent(-1);
  const auto id = [&](std::int64_t row) { return ids[static_cast<std::size_t>(row)]; };
  std::vector<std::int64_t> order(ids.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, id);
  std::vector<const std::int64_t*> starts;  // the places in `order` where a run of equal ids starts
  const std::int64_t* const end = order.data() + order.size();
  for (const std::int64_t* at = order.data(); at != end; at = std::find_if(at, end, [&](std::int64_t row) { return id(row) != id(*at); })) {
    starts.push_back(at);
  }
  starts.push_back(end);
  parallel_for(static_cast<std::int64_t>(starts.size()) - 1, row_grain(width, 2), executor, [&](std::int64_t first, std::int64_t last) {
    std::vector<A> sums(static_cast<std::size_t>(width));
    A* const total = sums.data();
    for (auto group = static_cast<std::size_t>(first); group < static_cast<std::size_t>(last); ++group) {
      std::fill_n(total, width, A{0});
      for (const std::int64_t* row = starts[group]; row != starts[group + 1]; ++row) {
        for (std::int64_t e = 0; e < width; ++e) total[e] += load(d_y.at(*row, e));
      }
      for (std::int64_t e = 0; e < width; ++e) {
        T& target = d_weight.at(id(*starts[group]), e);
        target = store<T>(load(target) + load(store<T>(total[e])));  // rounds in the same way as add_gradients()
      }
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

void Embedding::forward(ConstTensorView ids, TensorView y, const EmbeddingOptions& options) const {
  constexpr const char* kOperation = "Embedding.forward";
  require_weight(kOperation, weight, 2, "[count,width]");
  const std::vector<std::int64_t> rows = checked_ids(kOperation, {"ids", ids}, count());
  require_exactly(kOperation, {"y", y}, appended(ids.shape(), {width()}), weight.dtype());
  require_no_overlap(kOperation, {"y", y}, {{"ids", ids}, {"weight", weight}});
  dispatch_floating(weight.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Rows<const T> source(weight);
    const Rows<T> target(y);
    const bool add = options.write == Write::add, contiguous = source.contiguous() && target.contiguous();
    const std::int64_t columns = width(), from_step = weight.view().stride(-1), to_step = y.stride(-1);
    const auto put_row = [add, columns](const T* from, auto step, T* to, auto step_to) {
      for (std::int64_t e = 0; e < columns; ++e) {
        const T value = from[e * step];
        to[e * step_to] = add ? store<T>(load(to[e * step_to]) + load(value)) : value;
      }
    };
    parallel_for(columns > 0 ? target.count() : 0, row_grain(columns, 1), options.executor, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        const T* const from = &source.at(rows[static_cast<std::size_t>(row)], 0);
        T* const to = &target.at(row, 0);
        contiguous ? put_row(from, kOne, to, kOne) : put_row(from, from_step, to, to_step);
      }
    });
  });
}

void Embedding::backward(ConstTensorView ids, ConstTensorView d_y, const Gradients& gradients, const RunOptions& options) const {
  constexpr const char* kOperation = "Embedding.backward";
  require_weight(kOperation, weight, 2, "[count,width]");
  const std::vector<std::int64_t> rows = checked_ids(kOperation, {"ids", ids}, count());
  require_exactly(kOperation, {"d_y", d_y}, appended(ids.shape(), {width()}), weight.dtype());
  Embedding* const grads = gradients.parameters;
  if (grads == nullptr) return;
  require_gradients(kOperation, *this, *grads, {{"ids", ids}, {"d_y", d_y}});
  if (gradients.parameters_write == Write::replace) fill(grads->weight, 0);
  dispatch_floating(weight.dtype(),
                    [&](auto type) { gather_gradients<typename decltype(type)::type>(rows, d_y, grads->weight, options.executor); });
}

}  // namespace polyhead::nn
