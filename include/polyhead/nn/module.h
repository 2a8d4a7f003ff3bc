// What every module has: public parameters, forward, backward, and visit(f), the only list of its parameters. A module holds parameters
// and nothing else: what backward needs of a forward pass is held by the caller (a Saved struct, or the inputs themselves).
//
// Gradients of the parameters are a module of the same type: `Linear grads = zeros_like(linear); linear.backward(x, d_y, d_x, &grads);`.
// A parameter gradient is written, not accumulated; grads == nullptr computes none.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "polyhead/tensor.h"

namespace polyhead::nn {

// Whether the gradient of an input replaces what is in the given memory or is added to it (an input that several maps share).
enum class Write : std::uint8_t { replace, add };

// visit(f) calls f(name, tensor) for every parameter that is present, in a fixed order; the names are dotted paths: "q.weight".
// A module is a struct M : Module<M> with `template <class Self, class F> static void visit_parameters(Self& self, F& f)`, Self being M or
// const M.
template <class M>
struct Module {
  template <class F>
  void visit(F&& f) {
    M::visit_parameters(static_cast<M&>(*this), f);
  }
  template <class F>
  void visit(F&& f) const {
    M::visit_parameters(static_cast<const M&>(*this), f);
  }
};

// For a module with children: visit_child("q", q, f) calls f("q." + name, tensor) for each of q's.
template <class Child, class F>
void visit_child(const std::string& prefix, Child& child, F&& f) {
  child.visit([&](const std::string& name, auto& tensor) { f(prefix + "." + name, tensor); });
}

template <class M>
auto parameters(M& module) {
  using TensorType = std::conditional_t<std::is_const_v<M>, const Tensor, Tensor>;
  std::vector<std::pair<std::string, TensorType*>> list;
  module.visit([&](const std::string& name, TensorType& tensor) { list.emplace_back(name, &tensor); });
  return list;
}

// A module of the same structure whose parameters are zero.
template <class M>
M zeros_like(const M& module) {
  M zeros = module;
  zeros.visit([](const std::string&, Tensor& tensor) { tensor = Tensor(tensor.dtype(), tensor.shape()); });
  return zeros;
}

}  // namespace polyhead::nn
