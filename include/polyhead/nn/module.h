// The shape that all layers share. A layer holds public parameters, lists them in visit(f), and has
//   forward(inputs, output, options, saved)          saved: what backward needs of this pass, owned by the caller; nullptr when evaluating
//   backward(inputs or saved, d_output, gradients, options)
// Gradients of the parameters are a layer of the same type, written and not accumulated:
//   Linear d_linear = zeros_like(linear);
//   linear.backward(x, d_y, {.x = d_x, .parameters = &d_linear});
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "polyhead/executor.h"
#include "polyhead/tensor.h"
#include "polyhead/workspace.h"

namespace polyhead::nn {

// Whether a result replaces what is in the given memory or is added to it: gradients of an input that several projections share are added.
enum class Write : std::uint8_t { replace, add };

// Threads and temporary memory of a call. Results depend on neither.
struct RunOptions {
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;
};

// Where backward of a layer with one input writes. The gradient of x is computed unless the view is absent, those of the parameters unless
// the pointer is nullptr.
template <class M>
struct Gradients {
  TensorView x = {};            // of the input's shape
  M* parameters = nullptr;      // a module of the same shapes, for example zeros_like(layer)
  Write x_write = Write::replace;
};

// visit(f) calls f(name, tensor) for every parameter that is present, in a fixed order; the names are dotted paths: "q.weight".
// A layer is a struct M : Module<M> with `template <class Self, class F> static void visit_parameters(Self& self, F& f)`, Self being M or
// const M, and `M zeros() const` for zeros_like.
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

// For f(NoName, tensor): a visitor of all parameters that needs no names, so that none is joined.
struct NoName {
  template <class T>
  NoName(const T&) {}  // NOLINT(google-explicit-constructor)
};

// For a module with children: visit_child("q", q, f) calls f("q." + name, tensor) for each parameter of q.
template <class Child, class F>
void visit_child(const std::string& prefix, Child& child, F&& f) {
  if constexpr (requires(const Tensor& tensor) { f(NoName(0), tensor); }) {
    child.visit(f);
  } else {
    child.visit([&](const std::string& name, auto& tensor) { f(prefix + "." + name, tensor); });
  }
}

template <class M>
auto parameters(M& module) {
  using TensorType = std::conditional_t<std::is_const_v<M>, const Tensor, Tensor>;
  std::vector<std::pair<std::string, TensorType*>> list;
  module.visit([&](const std::string& name, TensorType& tensor) { list.emplace_back(name, &tensor); });
  return list;
}

inline Tensor zeros_like(const Tensor& tensor) { return tensor ? Tensor(tensor.dtype(), tensor.shape()) : Tensor(); }

// A layer of the same structure whose parameters are zero. The parameters of `layer` are not copied.
template <class M>
  requires std::derived_from<M, Module<M>>
M zeros_like(const M& layer) {
  return layer.zeros();
}

}  // namespace polyhead::nn
