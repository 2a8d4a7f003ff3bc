#pragma once

#include <string>

#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead {

namespace detail {
struct Visitor {
  void operator()(const std::string& name, const Tensor& tensor) const;
};
}  // namespace detail

// A type whose member visit(f) calls f(name, tensor) for each of its tensors: a layer, an optimizer, a type of the caller. A list of parameters and a file
// path have no such member.
template <class M>
concept VisitsTensors = requires(M& module, const detail::Visitor& visitor) { module.visit(visitor); };

}  // namespace polyhead
#pragma GCC visibility pop
