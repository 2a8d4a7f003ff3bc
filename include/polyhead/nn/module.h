// The interface that all layers share. A layer holds public parameters, lists them in visit(f), and has
//   forward(inputs, output, options, saved)          saved: owned by the caller; receives what backward() needs; nullptr in evaluation
//   backward(inputs or saved, d_output, gradients, options)
// The gradients of the parameters are held in a layer of the same type. backward() replaces them or, with parameters_write = Write::add, adds to them:
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
#include "polyhead/visit.h"
#include "polyhead/workspace.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// replace: a result replaces what the given memory holds, which is then not read. add: the result is added to what the memory holds. Adding serves gradients of
// an input that several projections share, gradients of parameters over micro-batches, and gradients of a layer that a model uses twice.
enum class Write : std::uint8_t { replace, add };

// The threads and the temporary memory of a call. Results do not depend on them.
struct RunOptions {
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;
};

// Where backward() writes the gradients of a layer that has one input. The gradient of x is computed if its view is given, the gradients of the parameters if
// the pointer is given.
template <class M>
struct Gradients {
  TensorView x = {};        // the gradient of the input, in the input's shape
  M* parameters = nullptr;  // a layer with the same shapes, for example zeros_like(layer)
  Write x_write = Write::replace;
  // Whether the gradients of the parameters replace what `parameters` holds, or are added to it. Adding gives the same bits as backward() into a
  // zeros_like(layer), followed by add_gradients(): each element of the new gradient is rounded to the parameter's dtype, then the sum is rounded. The
  // workspace holds one tensor at a time. If backward() throws after its checks, some sums include the new gradient and others do not: set all sums to zero and
  // start again. (add_gradients() adds all or nothing.)
  Write parameters_write = Write::replace;
};

namespace detail {
template <class M, class F>
void visit(const std::string& prefix, M& layer, F& f);
}  // namespace detail

// A layer is a struct M : Module<M> that lists its members once, for visit() and zeros_like():
//   template <class F, class... Self>
//   static void visit_members(const F& f, Self&... self) { f("weight", self.weight...); f("epsilon", self.epsilon...); }
// A member is a tensor, a layer, a vector of layers, or a setting of any other type. `self` is one layer, or two layers of the same type.
template <class M>
struct Module {
  // Calls f(name, tensor) for every parameter that is present, in a fixed order. A name is a path with dots: "q.weight". If f takes a NoName in place of the
  // name, no time is spent on joining names.
  template <class F>
  void visit(F&& f) {
    detail::visit("", static_cast<M&>(*this), f);
  }
  template <class F>
  void visit(F&& f) const {
    detail::visit("", static_cast<const M&>(*this), f);
  }
};

struct NoName {};

namespace detail {

template <class T>
inline constexpr bool kIsLayer = std::is_base_of_v<Module<T>, T>;
template <class T>
inline constexpr bool kIsLayers = false;
template <class T>
inline constexpr bool kIsLayers<std::vector<T>> = kIsLayer<T>;

template <class M, class F>
void visit(const std::string& prefix, M& layer, F& f) {
  constexpr bool kNamed = !std::is_invocable_v<F&, NoName, const Tensor&>;
  layer.visit_members(
      [&](const char* name, auto& member) {
        using Member = std::remove_const_t<std::remove_reference_t<decltype(member)>>;
        const auto path = [&](const std::string& rest = "") { return kNamed ? prefix + name + rest : std::string(); };
        if constexpr (std::is_same_v<Member, Tensor>) {
          if (!member) return;
          if constexpr (kNamed) {
            f(path(), member);
          } else {
            f(NoName(), member);
          }
        } else if constexpr (kIsLayer<Member>) {
          visit(path("."), member, f);
        } else if constexpr (kIsLayers<Member>) {
          for (std::size_t i = 0; i < member.size(); ++i) visit(path(".").append(kNamed ? std::to_string(i) + "." : ""), member[i], f);
        }
      },
      layer);
}

}  // namespace detail

// The names of a module's tensors, and the tensors, in the order of visit().
using NamedParameters = std::vector<std::pair<std::string, Tensor*>>;
struct ConstNamedParameters : std::vector<std::pair<std::string, const Tensor*>> {
  using vector::vector;
  ConstNamedParameters(const NamedParameters& list) : vector(list.begin(), list.end()) {}  // NOLINT(google-explicit-constructor)
};

template <VisitsTensors M>
auto parameters(M& module) {
  using TensorType = std::conditional_t<std::is_const_v<M>, const Tensor, Tensor>;
  std::conditional_t<std::is_const_v<M>, ConstNamedParameters, NamedParameters> list;
  module.visit([&](const std::string& name, TensorType& tensor) { list.emplace_back(name, &tensor); });
  return list;
}

inline Tensor zeros_like(const Tensor& tensor) { return tensor ? Tensor(tensor.dtype(), tensor.shape()) : Tensor(); }

// Returns a layer of the same structure whose parameters are zero. The parameters of `layer` are not copied.
template <class M>
requires std::derived_from<M, Module<M>> M zeros_like(const M& layer) {
  M zeros;
  M::visit_members(
      [](const char*, auto& to, const auto& from) {
        using Member = std::remove_reference_t<decltype(to)>;
        if constexpr (std::is_same_v<Member, Tensor> || detail::kIsLayer<Member>) {
          to = zeros_like(from);
        } else if constexpr (detail::kIsLayers<Member>) {
          for (const auto& child : from) to.push_back(zeros_like(child));
        } else {
          to = from;
        }
      },
      zeros, layer);
  return zeros;
}

}  // namespace polyhead::nn
#pragma GCC visibility pop
