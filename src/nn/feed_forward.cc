#include "polyhead/nn/feed_forward.h"

#include "nn/check.h"
#include "nn/chunked_forward.h"
#include "nn/elementwise.h"
#include "nn/initialiser.h"

namespace polyhead::nn {
namespace {

void require_meeting(const char* operation, const FeedForward& module) {
  require(module.hidden.weight && module.output.weight, operation, ": a weight is missing");
  require(module.hidden.out_width() == module.output.in_width() && module.hidden.weight.dtype() == module.output.weight.dtype(), operation,
          ": hidden is ", module.hidden.weight.dtype(), " ", module.hidden.weight.shape(), " and output ", module.output.weight.dtype(),
          " ", module.output.weight.shape(), "; hidden's out_width must be output's in_width, and both must have one dtype");
  if (module.gated()) require_exactly(operation, {"gate.weight", module.gate.weight}, module.hidden.weight.shape(), module.hidden.weight.dtype());
}

}  // namespace

ChunkedFeedForward::ChunkedFeedForward(const FeedForward& module, ConstTensorView x, const RunOptions& options)
    : module_(module), x_(x), options_(options) {
  require_meeting("FeedForward.forward", module);
  const std::int64_t factors = module.gated() ? 2 : 1, width = module.hidden.out_width(), rows = numel(x.shape().first(x.rank() - 1));
  for (int axis = 0; axis < x.rank() - 1 && dimension_ < 0 && rows > 0; ++axis) {
    if (x.extent(axis) > 1) dimension_ = axis;
  }
  if (dimension_ >= 0) {
    const std::int64_t extent = x.extent(dimension_), weights = width * (factors * module.hidden.in_width() + module.output.out_width());
    const auto bytes_of = [](DType dtype) { return static_cast<std::int64_t>(info(dtype).size); };
    chunks_ =
        Chunks(extent, rows / extent * factors * width * bytes_of(x.dtype()), weights * bytes_of(accumulation_dtype(x.dtype())), options.executor);
  }
  const PackFor use = chunks_.count() > 1 ? PackFor::several_products : PackFor::one_product;
  hidden_ = PackedLinear(module.hidden, use, options);
  output_ = PackedLinear(module.output, use, options);
  if (module.gated()) gate_ = PackedLinear(module.gate, use, options);
}

void ChunkedFeedForward::run(std::int64_t chunk, TensorView y, Tensor& scratch, Executor* executor) const {
  const ConstTensorView own_x = of(x_, chunk);
  const std::int64_t width = module_.hidden.out_width();
  reuse_or_allocate(scratch, own_x.dtype(), with_width(own_x.shape(), module_.gated() ? 2 * width : width), options_.workspace);
  const TensorView hidden = module_.gated() ? scratch.view().slice(-1, 0, width) : scratch.view();
  hidden_.forward(own_x, hidden, executor);
  if (module_.gated()) {
    const TensorView gate = scratch.view().slice(-1, width, 2 * width);
    gate_.forward(own_x, gate, executor);
    activate(module_.activation, gate, gate, executor);
    multiply(gate, hidden, hidden, executor);
  } else {
    activate(module_.activation, hidden, hidden, executor);
  }
  output_.forward(hidden, y, executor);
}

FeedForward::FeedForward(const FeedForwardConfig& config) : activation(config.activation) {
  require(config.width >= 1 && config.hidden_width >= 1 && config.out_width >= 0, "FeedForward: width is ",
          config.width, ", hidden_width ", config.hidden_width, ", out_width ", config.out_width,
          "; width and hidden_width must be at least 1, out_width at least 0 (0: width)");
  Initialiser initialiser(config.seed);
  hidden = Linear({.in_width = config.width,
                   .out_width = config.hidden_width,
                   .bias = config.bias,
                   .dtype = config.dtype,
                   .seed = initialiser.child_seed()});
  output = Linear({.in_width = config.hidden_width,
                   .out_width = config.out_width == 0 ? config.width : config.out_width,
                   .bias = config.bias,
                   .dtype = config.dtype,
                   .seed = initialiser.child_seed()});
  if (!config.gated) return;
  gate = Linear({.in_width = config.width,
                 .out_width = config.hidden_width,
                 .bias = config.bias,
                 .dtype = config.dtype,
                 .seed = initialiser.child_seed()});
}

FeedForward::FeedForward(Linear hidden_, Linear output_, Activation activation_, Linear gate_)
    : hidden(std::move(hidden_)), output(std::move(output_)), gate(std::move(gate_)), activation(activation_) {
  require_meeting("FeedForward", *this);
}

void FeedForward::forward(ConstTensorView x, TensorView y, const RunOptions& options, Saved* saved) const {
  constexpr const char* kOperation = "FeedForward.forward";
  require_meeting(kOperation, *this);
  const DType dtype = hidden.weight.dtype();
  require_rows(kOperation, {"x", x}, "width", hidden.in_width(), dtype);
  require_exactly(kOperation, {"y", y}, with_width(x.shape(), output.out_width()), dtype);
  require_no_overlap(kOperation, {"y", y}, {{"x", x}});
  require_parameters_separate(kOperation, {{"y", y}}, *this);
  if (saved == nullptr) {
    const ChunkedFeedForward evaluation(*this, x, options);
    return evaluation.for_each_chunk([&](Executor* own) {
      return [&, own](std::int64_t chunk, Tensor& scratch) { evaluation.run(chunk, evaluation.of(y, chunk), scratch, own); };
    });
  }
  *saved = {};  // frees the memory of *saved first, so that the workspace can reuse it
  Tensor before = uninitialised(dtype, with_width(x.shape(), hidden.out_width()), options.workspace);
  Tensor after = uninitialised(dtype, before.shape(), options.workspace);
  hidden.forward(x, before, options);
  Tensor of_gate;
  if (gated()) {
    of_gate = uninitialised(dtype, before.shape(), options.workspace);
    gate.forward(x, of_gate, options);
  }
  activate(activation, gated() ? of_gate : before, after, options.executor);
  if (gated()) multiply(after, before, after, options.executor);
  output.forward(after, y, options);
  *saved = {.x = x, .hidden = std::move(before), .gate = std::move(of_gate), .activation = activation, .constant_parameters = caches_parameters(options.workspace)};
}

void FeedForward::backward(const Saved& saved, ConstTensorView d_y, const Gradients<FeedForward>& gradients,
                           const RunOptions& options) const {
  constexpr const char* kOperation = "FeedForward.backward";
  const ConstTensorView x = saved.x;
  const TensorView d_x = gradients.x;
  FeedForward* const grads = gradients.parameters;
  require(static_cast<bool>(saved.hidden), kOperation, ": saved is empty; give it to forward first");
  require_meeting(kOperation, *this);
  require(saved.activation == activation, kOperation, ": saved comes from a layer with activation ",
          kActivations[static_cast<std::size_t>(saved.activation)].name, "; this one has ",
          kActivations[static_cast<std::size_t>(activation)].name);
  const DType dtype = hidden.weight.dtype();
  require_rows(kOperation, {"d_y", d_y}, "out_width", output.out_width(), dtype);
  const Shape x_shape = with_width(d_y.shape(), hidden.in_width());
  require_exactly(kOperation, {"saved.x", x}, x_shape, dtype);
  require_exactly(kOperation, {"saved.hidden", saved.hidden}, with_width(d_y.shape(), hidden.out_width()), dtype);
  require(static_cast<bool>(saved.gate) == gated(), kOperation, ": saved comes from a layer ", gated() ? "without" : "with", " a gate");
  if (d_x) {
    require_exactly(kOperation, {"d_x", d_x}, x_shape, dtype);
    require_no_overlap(kOperation, {"d_x", d_x}, {{"x", x}, {"d_y", d_y}, {"saved.hidden", saved.hidden}});
    require_parameters_separate(kOperation, {{"d_x", d_x}}, *this);
  }
  if (grads != nullptr) {
    require_parameters_may_change(kOperation, saved.constant_parameters, options.workspace);
    require_gradients(kOperation, *this, *grads, {{"x", x}, {"d_y", d_y}, {"saved.hidden", saved.hidden}}, {"d_x", d_x});
  }
  const auto into = [&](Linear FeedForward::*member, TensorView d_input, Write x_write) {
    return Gradients<Linear>{.x = d_input, .parameters = grads ? &(grads->*member) : nullptr, .x_write = x_write, .parameters_write = gradients.parameters_write};
  };
  const auto like_hidden = [&] { return uninitialised(dtype, saved.hidden.shape(), options.workspace); };
  const Tensor& activated = gated() ? saved.gate : saved.hidden;  // the input of the activation: in a gated network the gate
  Tensor d_hidden = like_hidden(), d_gate, factor, after;
  if (grads != nullptr || gated()) {
    factor = like_hidden();
    activate(activation, activated, factor, options.executor);
  }
  if (grads != nullptr && gated()) {
    after = like_hidden();
    multiply(factor, saved.hidden, after, options.executor);
  }
  output.backward(gated() ? after : factor, d_y, into(&FeedForward::output, d_hidden, Write::replace), options);
  after = Tensor();
  if (gated()) {  // the backward pass of the product of activated gate and hidden
    d_gate = like_hidden();
    multiply(d_hidden, saved.hidden, d_gate, options.executor);
    multiply(d_hidden, factor, d_hidden, options.executor);
  }
  const TensorView d_activated = gated() ? d_gate.view() : d_hidden.view();
  activate_backward(activation, activated, d_activated, d_activated, Write::replace, options.executor);
  hidden.backward(x, d_hidden, into(&FeedForward::hidden, d_x, gradients.x_write), options);
  if (gated()) gate.backward(x, d_gate, into(&FeedForward::gate, d_x, Write::add), options);
}

}  // namespace polyhead::nn
