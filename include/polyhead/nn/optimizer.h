// Trains any module that lists its parameters (module.h): the optimizer AdamW, clipping of gradients, and sums of gradients. A step of a training loop:
//   clip_gradients(gradients, 1.0);
//   optimizer.step(model, gradients, {.learning_rate = warmup_cosine(optimizer.steps() + 1, schedule)});
// `gradients` is a module of the model's type, as zeros_like(model) and backward() make it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "polyhead/nn/module.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// Settings of AdamW. The defaults are those of torch.optim.AdamW.
struct AdamWConfig {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  // Says whether a parameter decays; absent: all parameters decay. Often only matrices decay: [](const std::string&, const Tensor& p) { return p.shape().size()
  // > 1; }
  std::function<bool(const std::string& name, const Tensor& parameter)> decays{};
};

struct AdamWStep {
  std::optional<double> learning_rate{};  // the learning rate of this step, for example from learning_rate.h; absent: AdamWConfig::learning_rate
  Executor* executor = nullptr;
};

// Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2; Kingma and Ba 2015, algorithm 1). A step computes the same as torch.optim.AdamW:
//   p <- p - rate decay p,   m <- m + (1 - beta1)(g - m),   v <- beta2 v + (1 - beta2) g^2,
//   p <- p - rate / (1 - beta1^k) m / (sqrt(v) / sqrt(1 - beta2^k) + epsilon)         in step k = 1, 2, …
// AdamW holds m and v of each parameter, in the parameter's dtype, which is float32 or float64. 16-bit parameters are an Error, because rounding would lose
// their changes. Parameters that are not contiguous are an Error. Two parameters that share memory are an Error, because a step would change them twice: list
// tied parameters once. The bits of the results do not depend on the number of threads.
class AdamW {
 public:
  template <VisitsTensors M>
  explicit AdamW(const M& module, AdamWConfig config = {}) : AdamW(parameters(module), std::move(config)) {}
  explicit AdamW(const ConstNamedParameters& parameters, AdamWConfig config = {});

  // Error unless `module` and `gradients` have the names, shapes and dtypes of the module that the optimizer was made for. Error if a parameter shares memory
  // with another parameter or with a gradient. If step() throws (std::bad_alloc included), nothing is changed, with one exception: if the caller's executor
  // fails after some tasks have run, some parameters are already updated, while steps() is unchanged.
  template <VisitsTensors M>
  void step(M& module, const M& gradients, const AdamWStep& options = {}) {
    step(parameters(module), parameters(gradients), options);
  }
  void step(const NamedParameters& parameters, const ConstNamedParameters& gradients, const AdamWStep& options = {});

  std::int64_t steps() const { return *steps_.data<std::int64_t>(); }  // number of steps taken so far
  const AdamWConfig& config() const { return config_; }

  // Calls f(name, tensor) for the whole state: "steps" (int64), then "m.NAME" and "v.NAME" of each parameter. If a run loads this state and the parameters of
  // the same step, it continues with the same bits.
  template <class F>
  void visit(const F& f) {
    visit_state(*this, f);
  }
  template <class F>
  void visit(const F& f) const {
    visit_state(*this, f);
  }

 private:
  struct Moments {
    std::string name;
    Tensor m, v;
    bool decays = true;
  };
  template <class Self, class F>
  static void visit_state(Self& self, const F& f) {
    f(std::string("steps"), self.steps_);
    for (auto& moments : self.moments_) f("m." + moments.name, moments.m), f("v." + moments.name, moments.v);
  }

  AdamWConfig config_;
  std::vector<Moments> moments_;
  Tensor steps_;
};

// Limits the norm of all gradients together: multiplies them by min(1, max_norm / (norm + 1e-6)) and returns norm, the square root of the sum of the squares of
// all their elements (Pascanu et al. 2013, algorithm 1; 1e-6 as in torch.nn.utils.clip_grad_norm_). The sum is computed in float64 in a fixed order. Error if
// the sum of the squares of a gradient is not finite (the message names the gradient), or if two gradients share memory. If clip_gradients() throws, nothing is
// changed, with the exception that AdamW::step() describes.
double clip_gradients(const NamedParameters& gradients, double max_norm, Executor* executor = nullptr);
template <VisitsTensors M>
double clip_gradients(M& gradients, double max_norm, Executor* executor = nullptr) {
  return clip_gradients(parameters(gradients), max_norm, executor);
}

// Adds gradients to sums, parameter by parameter: for micro-batches, or for a layer or an embedding that a model uses twice. Error if a sum shares memory with
// another sum or with a gradient. If add_gradients() throws, nothing is changed, with the exception that AdamW::step() describes.
void add_gradients(const ConstNamedParameters& gradients, const NamedParameters& sums, Executor* executor = nullptr);
template <VisitsTensors M>
void add_gradients(const M& gradients, M& sums, Executor* executor = nullptr) {
  add_gradients(parameters(gradients), parameters(sums), executor);
}

}  // namespace polyhead::nn
#pragma GCC visibility pop
