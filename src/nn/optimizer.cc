#include "polyhead/nn/optimizer.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "cpu/select.h"
#include "nn/check.h"
#include "nn/elementwise.h"
#include "nn/rows.h"

namespace polyhead::nn {
namespace {

// Number of elements that a thread takes at once. It does not depend on the number of threads, so neither do sums.
constexpr std::int64_t kPiece = 1 << 14;

// Messages put these words before the name of a tensor.
constexpr const char *kParameter = "the parameter ", *kGradient = "the gradient of ";

bool is_rate(double x) { return x >= 0 && std::isfinite(x); }

struct Piece {
  std::size_t tensor;
  std::int64_t first, count;
};

template <class List>
std::vector<Piece> cut(const List& list) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::int64_t count = list[i].second->numel();
    for (std::int64_t first = 0; first < count; first += kPiece) pieces.push_back({i, first, std::min(kPiece, count - first)});
  }
  return pieces;
}

template <class F>
void for_each_piece(const std::vector<Piece>& pieces, Executor* executor, const F& f) {
  parallel_for(static_cast<std::int64_t>(pieces.size()), 1, executor, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) f(static_cast<std::size_t>(i), pieces[static_cast<std::size_t>(i)]);
  });
}

// Calls f(Type<T>) for float32 and float64, the only dtypes that require_plain accepts.
template <class F>
void dispatch_plain(DType dtype, const F& f) {
  dtype == DType::f64 ? f(Type<double>{}) : f(Type<float>{});
}

void require_plain(const char* operation, const char* what, const std::string& name, const Tensor& tensor) {
  require(tensor.dtype() == DType::f32 || tensor.dtype() == DType::f64, operation, ": ", what, name, " is ", tensor.dtype(),
          "; it must be float32 or float64");
  require(tensor.view().is_contiguous(), operation, ": ", what, name, " is not contiguous");
}

// Error if a tensor in `outputs`, which will be written, shares memory with another tensor of either list. `written` and `read` name the two kinds of tensors
// in the message.
void require_distinct(const char* operation, const char* written, const ConstNamedParameters& outputs, const char* read = "",
                      const ConstNamedParameters& inputs = {}) {
  struct Item {
    MemorySpan span;
    Operand operand;
    bool is_output;
  };
  std::vector<Item> items;
  for (const auto& [name, tensor] : outputs) items.push_back({byte_span(*tensor), {{written, name}, *tensor}, true});
  for (const auto& [name, tensor] : inputs) items.push_back({byte_span(*tensor), {{read, name}, *tensor}, false});
  std::vector<const Item*> order;
  for (const Item& item : items) order.push_back(&item);
  std::ranges::sort(order, {}, [](const Item* item) { return item->span.first; });
  // The first two tensors that share memory, in the order of the lists. The message names them, so it does not depend on addresses.
  std::pair<const Item*, const Item*> first{};
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (std::size_t j = i + 1; j < order.size() && order[j]->span.first < order[i]->span.last; ++j) {
      const std::pair<const Item*, const Item*> pair = std::minmax(order[i], order[j]);
      if (!pair.first->is_output || !overlaps(order[i]->operand.view, order[j]->operand.view)) continue;
      if (first.first == nullptr || pair < first) first = pair;
    }
  }
  if (first.first == nullptr) return;
  fail(ErrorCode::invalid_argument, operation, ": ", first.first->operand.name, " and ", first.second->operand.name, " share memory; ",
       first.second->is_output ? "list tied parameters once" : "each needs memory of its own");
}

// Error unless both lists have the same names, shapes and dtypes.
template <class List>
void require_same(const char* operation, const char* what, const ConstNamedParameters& expected, const List& given) {
  require(given.size() == expected.size(), operation, ": ", what, " has ", given.size(), " tensors; there must be ", expected.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto& [name, tensor] = expected[i];
    require(given[i].first == name, operation, ": tensor ", i, " of ", what, " is ", given[i].first, "; it must be ", name);
    const std::string full = cat(what, " ", name);
    require_exactly(operation, {full, *given[i].second}, tensor->shape(), tensor->dtype());
  }
}

}  // namespace

AdamW::AdamW(const ConstNamedParameters& list, AdamWConfig config) : config_(std::move(config)), steps_(DType::i64, {}) {
  constexpr const char* kOperation = "AdamW";
  const AdamWConfig& c = config_;
  require(c.beta1 >= 0 && c.beta1 < 1 && c.beta2 >= 0 && c.beta2 < 1, kOperation, ": beta1 is ", c.beta1, " and beta2 ", c.beta2,
          "; both must be in [0,1)");
  require(is_rate(c.learning_rate) && is_rate(c.epsilon) && is_rate(c.weight_decay), kOperation, ": learning_rate is ", c.learning_rate,
          ", epsilon ", c.epsilon, " and weight_decay ", c.weight_decay, "; each must be finite and not negative");
  for (const auto& [name, tensor] : list) require_plain(kOperation, kParameter, name, *tensor);
  require_distinct(kOperation, kParameter, list);
  for (const auto& [name, tensor] : list) {
    moments_.push_back({name, zeros_like(*tensor), zeros_like(*tensor), !c.decays || c.decays(name, *tensor)});
  }
}

void AdamW::step(const NamedParameters& list, const ConstNamedParameters& gradients, const AdamWStep& options) {
  constexpr const char* kOperation = "AdamW.step";
  const double learning_rate = options.learning_rate.value_or(config_.learning_rate);
  require(is_rate(learning_rate), kOperation, ": learning_rate is ", learning_rate, "; it must be finite and not negative");
  ConstNamedParameters expected;
  for (const Moments& moments : moments_) expected.emplace_back(moments.name, &moments.m);
  require_same(kOperation, "parameter", expected, list);
  require_same(kOperation, "gradient", expected, gradients);
  for (const auto& [name, tensor] : list) require_plain(kOperation, kParameter, name, *tensor);
  for (const auto& [name, tensor] : gradients) require_plain(kOperation, kGradient, name, *tensor);
  require_distinct(kOperation, kParameter, list, kGradient, gradients);

  // The step is counted at the end of the function, because the code before it allocates and may throw.
  const auto number = static_cast<double>(steps() + 1);
  const double first = 1 - std::pow(config_.beta1, number), second = 1 - std::pow(config_.beta2, number);
  const auto& kernels = cpu::current_kernels_of<cpu::AdamKernels>();
  for_each_piece(cut(list), options.executor, [&](std::size_t, const Piece& piece) {
    Moments& moments = moments_[piece.tensor];
    const cpu::AdamStep step{.keep = moments.decays ? 1 - learning_rate * config_.weight_decay : 1,
                             .rate = learning_rate / first,
                             .new_m = 1 - config_.beta1,
                             .old_v = config_.beta2,
                             .new_v = 1 - config_.beta2,
                             .root_scale = 1 / std::sqrt(second),
                             .epsilon = config_.epsilon};
    dispatch_plain(moments.m.dtype(), [&](auto type) {
      using T = typename decltype(type)::type;
      const auto at = [&](auto& tensor) { return tensor.template data<T>() + piece.first; };
      const Tensor& gradient = *gradients[piece.tensor].second;
      cpu::kernel_of<T>(kernels)(piece.count, step, at(gradient), at(moments.m), at(moments.v), at(*list[piece.tensor].second));
    });
  });
  ++*steps_.data<std::int64_t>();
}

double clip_gradients(const NamedParameters& gradients, double max_norm, Executor* executor) {
  constexpr const char* kOperation = "clip_gradients";
  require(max_norm >= 0, kOperation, ": max_norm is ", max_norm, "; it may not be negative");
  for (const auto& [name, tensor] : gradients) require_plain(kOperation, kGradient, name, *tensor);
  require_distinct(kOperation, kGradient, gradients);
  const std::vector<Piece> pieces = cut(gradients);
  std::vector<double> sums(pieces.size());
  for_each_piece(pieces, executor, [&](std::size_t i, const Piece& piece) {
    const Tensor& tensor = *gradients[piece.tensor].second;
    dispatch_plain(tensor.dtype(), [&](auto type) {
      const auto* const data = tensor.template data<typename decltype(type)::type>() + piece.first;
      sums[i] = sum<double>(piece.count, [data](std::int64_t e) { return static_cast<double>(data[e]) * static_cast<double>(data[e]); });
    });
  });
  double total = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    total += sums[i];
    require(std::isfinite(total), kOperation, ": the squares of the gradient of ", gradients[pieces[i].tensor].first,
            " sum to no finite number");
  }
  const double norm = std::sqrt(total), factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  for_each_piece(pieces, executor, [&](std::size_t, const Piece& piece) {
    Tensor& tensor = *gradients[piece.tensor].second;
    dispatch_plain(tensor.dtype(), [&](auto type) {
      using T = typename decltype(type)::type;
      T* const data = tensor.template data<T>() + piece.first;
      for (std::int64_t e = 0; e < piece.count; ++e) data[e] *= static_cast<T>(factor);
    });
  });
  return norm;
}

void add_gradients(const ConstNamedParameters& gradients, const NamedParameters& sums, Executor* executor) {
  constexpr const char* kOperation = "add_gradients";
  require_same(kOperation, "sums", gradients, sums);
  for (const auto& [name, tensor] : sums) {
    require(!overlaps_itself(*tensor), kOperation, ": elements of the sum ", name, " share memory; each needs memory of its own");
  }
  require_distinct(kOperation, "the sum ", sums, kGradient, gradients);
  std::vector<Sum> all;
  // add() needs tensors of at least one dimension, so a scalar gets a dimension here.
  for (std::size_t i = 0; i < sums.size(); ++i) all.push_back({gradients[i].second->view().unsqueeze(0), sums[i].second->view().unsqueeze(0)});
  add(all, executor);
}

}  // namespace polyhead::nn
