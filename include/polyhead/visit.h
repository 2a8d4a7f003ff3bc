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

// A type with a member visit(f) that calls f(name, tensor) for each of its tensors, such as a layer, an optimizer or a type of the caller. Lists of parameters
// and file paths do not qualify.
template <class M>
concept VisitsTensors = requires(M& module, const detail::Visitor& visitor) { module.visit(visitor); };

}  // namespace polyhead
#pragma GCC visibility pop
