#include "polyhead/nn/mixture_of_experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/dispatch.h"
#include "core/parallel.h"
#include "nn/check.h"
#include "nn/initialiser.h"

namespace polyhead::nn {
namespace {

constexpr const char* kOperation = "MixtureOfExperts.forward";
constexpr const char* kClamped = "; with clamped_gate it must be silu, because a clamped gate has its own formula";

std::string_view word_of(Activation activation) { return std::ranges::find(kActivations, activation, &ActivationInfo::activation)->name; }

// A row of x that is sent to an expert, and the factor of the expert's output.
struct Use {
  std::int64_t row = 0;
  double factor = 0;
};

// Chooses the mixture.chosen experts with the largest scores, and appends the row to the `uses` of each of them. Of equal scores the first counts as larger. A
// NaN counts as the largest score, so that it reaches the output.
void route(const MixtureOfExperts& mixture, std::int64_t row, const double* scores, std::vector<std::vector<Use>>& uses) {
  const std::size_t count = uses.size(), chosen = static_cast<std::size_t>(mixture.chosen);
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto before = [&](std::size_t a, std::size_t b) {
    const bool nan_a = std::isnan(scores[a]), nan_b = std::isnan(scores[b]);
    if (nan_a != nan_b) return nan_a;
    return !nan_a && scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + mixture.chosen, order.end(), before);
  const double largest = scores[order[0]];
  double sum = 0;
  for (std::size_t i = 0; i < (mixture.normalise ? chosen : count); ++i) sum += std::exp(scores[order[i]] - largest);
  for (std::size_t i = 0; i < chosen; ++i) uses[order[i]].push_back({row, std::exp(scores[order[i]] - largest) / sum});
}

// Clamps hidden and gate, then sets gate = (hidden + 1) * gate * sigmoid(slope * gate) (see ClampedGate). Both are [r,hidden_width], contiguous.
void apply_clamped_gate(const ClampedGate& rule, ConstTensorView hidden, TensorView gate, Executor* executor) {
  constexpr std::int64_t kGrain = 1024;  // elements that a thread takes at once; an exponential takes about 10 ns
  dispatch_floating(gate.dtype(), [&]<class T>(Type<T>) {
    using A = Accumulator<T>;
    const auto *h = hidden.data<T>();
    auto* g = gate.data<T>();
    const auto limit = static_cast<A>(rule.limit), slope = static_cast<A>(rule.slope);
    parallel_for(gate.numel(), kGrain, executor, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        A a = load(g[i]), b = load(h[i]);  // the comparisons below are written so that NaN stays NaN
        if (a > limit) a = limit;
        if (b > limit) b = limit;
        if (b < -limit) b = -limit;
        g[i] = store<T>((b + 1) * a / (1 + std::exp(-slope * a)));
      }
    });
  });
}

void run_expert(const MixtureOfExperts& mixture, const FeedForward& expert, ConstTensorView x, TensorView y, const RunOptions& options) {
  if (!mixture.clamped_gate) return expert.forward(x, y, options);
  Tensor hidden = uninitialised(x.dtype(), with_width(x.shape(), expert.hidden.out_width()), options.workspace);
  Tensor gate = uninitialised(x.dtype(), hidden.shape(), options.workspace);
  expert.hidden.forward(x, hidden, options);
  expert.gate.forward(x, gate, options);
  apply_clamped_gate(*mixture.clamped_gate, hidden, gate, options.executor);
  expert.output.forward(gate, y, options);
}

// Adds an expert's output to the sums of the rows that were sent to it: sums[row] += factor * out[i] for each uses[i] = (row, factor).
template <class T>
void add_scaled(const std::vector<Use>& uses, const Tensor& out, Tensor& sums) {
  using A = Accumulator<T>;
  const std::int64_t width = out.shape()[-1];
  const auto* from = out.data<T>();
  for (const Use& use : uses) {
    A* const to = sums.data<A>() + use.row * width;
    const auto factor = static_cast<A>(use.factor);
    for (std::int64_t i = 0; i < width; ++i) to[i] += factor * static_cast<A>(load(from[i]));
    from += width;
  }
}

void require_whole(const MixtureOfExperts& mixture) {
  require(static_cast<bool>(mixture.router.weight), kOperation, ": the router's weight is missing");
  const std::int64_t count = std::ssize(mixture.experts), width = mixture.router.in_width();
  const DType dtype = mixture.router.weight.dtype();
  require(mixture.router.out_width() == count, kOperation, ": the router has ", mixture.router.out_width(), " outputs for ", count, " experts");
  require(mixture.chosen >= 1 && mixture.chosen <= count, kOperation, ": chosen is ", mixture.chosen, "; it must be in [1, ", count, "], the experts");
  const auto require_expert = [&](const FeedForward& expert, const auto&... name) {
    require(expert.gated() && expert.output.weight, kOperation, ": ", name..., " must be a gated FeedForward");
    require(expert.gate.in_width() == width && expert.output.out_width() == width && expert.gate.weight.dtype() == dtype, kOperation, ": ", name..., " is ",
            expert.gate.in_width(), " -> ", expert.output.out_width(), " of ", expert.gate.weight.dtype(), "; it must be ", width, " -> ", width, " of ", dtype, ", as the router");
    require(!mixture.clamped_gate || expert.activation == Activation::silu, kOperation, ": ", name..., " has the activation ", word_of(expert.activation), kClamped);
  };
  for (std::int64_t i = 0; i < count; ++i) require_expert(mixture.experts[static_cast<std::size_t>(i)], "expert ", i);
  const bool has_gate = static_cast<bool>(mixture.shared_gate.weight);
  require(has_gate || !mixture.shared.hidden.weight, kOperation, ": the mixture has a shared expert and no shared_gate; the expert's output is multiplied by sigmoid(shared_gate(x))");
  if (!has_gate) return;
  require_expert(mixture.shared, "the shared expert");
  require_exactly(kOperation, {"shared_gate.weight", mixture.shared_gate.weight}, {1, width}, dtype);
}

}  // namespace

MixtureOfExperts::MixtureOfExperts(const MixtureOfExpertsConfig& c) : chosen(c.chosen), normalise(c.normalise), clamped_gate(c.clamped_gate) {
  constexpr const char* kName = "MixtureOfExperts";
  require(c.width >= 1 && c.hidden_width >= 1 && c.experts >= 1, kName, ": width is ", c.width, ", hidden_width ", c.hidden_width, ", experts ", c.experts, "; each must be at least 1");
  require(c.chosen >= 1 && c.chosen <= c.experts, kName, ": chosen is ", c.chosen, "; it must be in [1, ", c.experts, "], the experts");
  require(c.shared_hidden_width >= 0, kName, ": shared_hidden_width is ", c.shared_hidden_width, "; it must be at least 0");
  require(!clamped_gate || c.activation == Activation::silu, kName, ": activation is ", word_of(c.activation), kClamped);
  if (clamped_gate) require(clamped_gate->limit > 0 && clamped_gate->slope > 0, kName, ": clamped_gate has the slope ", clamped_gate->slope, " and the limit ", clamped_gate->limit, "; both must be above 0");
  Initialiser initialiser(c.seed);
  const auto linear = [&](std::int64_t out, bool bias) { return Linear({.in_width = c.width, .out_width = out, .bias = bias, .dtype = c.dtype, .seed = initialiser.child_seed()}); };
  const auto expert = [&](std::int64_t hidden_width) {
    return FeedForward({.width = c.width, .hidden_width = hidden_width, .activation = c.activation, .gated = true, .bias = c.bias, .dtype = c.dtype, .seed = initialiser.child_seed()});
  };
  router = linear(c.experts, c.router_bias);
  for (std::int64_t i = 0; i < c.experts; ++i) experts.push_back(expert(c.hidden_width));
  if (c.shared_hidden_width == 0) return;
  shared = expert(c.shared_hidden_width);
  shared_gate = linear(1, false);
}

void MixtureOfExperts::forward(ConstTensorView x, TensorView y, const RunOptions& options) const {
  require_whole(*this);
  const DType dtype = router.weight.dtype();
  require_rows(kOperation, {"x", x}, "width", router.in_width(), dtype);
  require_exactly(kOperation, {"y", y}, x.shape(), dtype);
  require_no_overlap(kOperation, {"y", y}, {{"x", x}});
  require_parameters_separate(kOperation, {{"y", y}}, *this);
  const std::int64_t width = router.in_width(), rows = numel(x.shape().first(x.rank() - 1)), count = std::ssize(experts);
  const DType precise = accumulation_dtype(dtype);
  Tensor input = uninitialised(dtype, {rows, width}, options.workspace);
  copy(x, input.view().reshape(x.shape()));
  Tensor scores = uninitialised(dtype, {rows, count}, options.workspace);
  router.forward(input, scores, options);
  const Tensor wide = Tensor::copy_of(scores, DType::f64);
  std::vector<std::vector<Use>> uses(experts.size());
  for (std::int64_t row = 0; row < rows; ++row) route(*this, row, wide.data<double>() + row * count, uses);

  Tensor sums(precise, {rows, width});
  const std::size_t row_bytes = static_cast<std::size_t>(width) * info(dtype).size;
  const auto run = [&](const FeedForward& expert, const std::vector<Use>& of) {
    if (of.empty()) return;
    const Shape shape{std::ssize(of), width};
    Tensor own = uninitialised(dtype, shape, options.workspace), out = uninitialised(dtype, shape, options.workspace);
    for (std::size_t i = 0; i < of.size(); ++i)
      std::memcpy(static_cast<std::byte*>(own.view().data()) + i * row_bytes, static_cast<const std::byte*>(input.view().data()) + static_cast<std::size_t>(of[i].row) * row_bytes, row_bytes);
    run_expert(*this, expert, own, out, options);
    dispatch_floating(dtype, [&]<class T>(Type<T>) { add_scaled<T>(of, out, sums); });
  };
  for (std::size_t i = 0; i < experts.size(); ++i) run(experts[i], uses[i]);
  if (shared_gate.weight) {
    Tensor gate = uninitialised(dtype, {rows, 1}, options.workspace);
    shared_gate.forward(input, gate, options);
    const Tensor factors = Tensor::copy_of(gate, DType::f64);
    std::vector<Use> all;
    for (std::int64_t row = 0; row < rows; ++row) all.push_back({row, 1 / (1 + std::exp(-factors.data<double>()[row]))});
    run(shared, all);
  }
  copy(sums.view().reshape(x.shape()), y);
}

}  // namespace polyhead::nn
