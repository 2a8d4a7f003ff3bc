// Checks of the tensors that callers pass to a layer.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "core/index.h"
#include "core/overlap.h"
#include "core/text.h"
#include "polyhead/nn/module.h"

namespace polyhead::nn {

inline void require_tensor(std::string_view operation, const Operand& tensor, DType dtype) {
  require(static_cast<bool>(tensor.view), operation, ": ", tensor.name, " is missing");
  require(tensor.view.dtype() == dtype, operation, ": ", tensor.name, " is ", tensor.view.dtype(), "; it must be ", dtype,
          is_floating(dtype) ? ", as the other tensors" : "");
}

// Error unless the tensor's last extent is the layer's width. The other extents may have any value.
inline void require_rows(std::string_view operation, const Operand& tensor, std::string_view what, std::int64_t width, DType dtype) {
  require_tensor(operation, tensor, dtype);
  require(tensor.view.rank() >= 1 && tensor.view.extent(-1) == width, operation, ": ", tensor.name, " is ", tensor.view.shape(),
          "; its last extent must be ", what, " = ", width);
}

inline void require_shape(std::string_view operation, const Operand& tensor, const Shape& shape) {
  require(tensor.view.shape() == shape, operation, ": ", tensor.name, " is ", tensor.view.shape(), "; it must be ", shape);
}

inline void require_exactly(std::string_view operation, const Operand& tensor, const Shape& shape, DType dtype) {
  require_tensor(operation, tensor, dtype);
  require_shape(operation, tensor, shape);
}

inline void require_no_overlap(std::string_view operation, const Operand& output, std::initializer_list<Operand> inputs) {
  polyhead::require_no_overlap(operation, std::span(&output, 1), std::span(inputs.begin(), inputs.size()));
}

// Returns whether a and b are the same view. Input and output may be one view if each element is read before it is written.
inline bool same_view(ConstTensorView a, ConstTensorView b) {
  return a.data() == b.data() && a.strides() == b.strides() && a.shape() == b.shape();
}

// Error if the output overlaps one of `others`. The output may be the same view as `own`; if it overlaps `own` otherwise, Error.
inline void require_output(std::string_view operation, const Operand& output, const Operand& own, std::initializer_list<Operand> others) {
  require_exactly(operation, output, own.view.shape(), own.view.dtype());
  require_no_overlap(operation, output, others);
  if (!same_view(output.view, own.view)) require_no_overlap(operation, output, {own});
}

inline Shape with_width(Shape shape, std::int64_t width) {
  shape[-1] = width;
  return shape;
}

// Error unless the weight of a module is floating and has `rank` extents. `letters` names the extents in the message: "[out,in]".
inline void require_weight(std::string_view operation, const Tensor& weight, int rank, std::string_view letters) {
  require(static_cast<bool>(weight), operation, ": the weight must be a floating tensor ", letters, "; there is none");
  require(weight.shape().size() == rank && is_floating(weight.dtype()), operation, ": the weight must be a floating tensor ", letters,
          "; it is ", weight.dtype(), " ", weight.shape());
}

// Returns whether the workspace caches packed copies of parameters.
inline bool caches_parameters(const Workspace* workspace) { return workspace != nullptr && workspace->parameters() == Parameters::constant; }

// Error if gradients of parameters are requested with a workspace of Parameters::constant. The parameters will change, but the workspace would keep using
// packed copies of their old values.
inline void require_parameters_may_change(std::string_view operation, bool forward_cached_them, const Workspace* workspace) {
  require(!forward_cached_them && !caches_parameters(workspace), operation,
          ": gradients of parameters cannot be computed with a workspace that takes them as constant (Parameters::constant); train with a Workspace of "
          "Parameters::may_change");
}

// Error if an output shares memory with a parameter of the module.
template <class M>
void require_parameters_separate(std::string_view operation, std::span<const Operand> outputs, const M& module) {
  bool separate = true;  // the first loop compares without names, because joining names would take longer than comparing
  module.visit([&](NoName, const Tensor& parameter) {
    for (const Operand& output : outputs) separate = separate && !overlaps(output.view, parameter);
  });
  if (separate) return;
  module.visit([&](const std::string& name, const Tensor& parameter) {
    for (const Operand& output : outputs) {
      require(!overlaps(output.view, parameter), operation, ": ", output.name, " overlaps the parameter ", name,
              "; outputs need memory of their own");
    }
  });
}

template <class M>
void require_parameters_separate(std::string_view operation, std::initializer_list<Operand> outputs, const M& module) {
  require_parameters_separate(operation, std::span(outputs.begin(), outputs.size()), module);
}

// Error unless `grads` has the structure of `module`, as zeros_like() gives it, and overlaps no input, no parameter and no other output. Call it before
// anything is written.
template <class M>
void require_gradients(std::string_view operation, const M& module, M& grads, std::span<const Operand> inputs,
                       std::span<const Operand> outputs = {}) {
  const auto own = parameters(module);
  const auto given = parameters(grads);
  const auto name_of = [](const auto& item) -> const std::string& { return item.first; };
  std::vector<Operand> others(inputs.begin(), inputs.end());
  others.insert(others.end(), outputs.begin(), outputs.end());
  for (const auto& [name, parameter] : own) others.push_back({name, *parameter});
  for (const auto& [name, parameter] : own) {
    const auto gradient = std::ranges::find(given, name, name_of);
    require(gradient != given.end(), operation, ": gradients.parameters->", name, " is missing");
    const Operand written{{"gradients.parameters->", name}, *gradient->second};
    require_exactly(operation, written, parameter->shape(), parameter->dtype());
    polyhead::require_no_overlap(operation, {&written, 1}, others);
  }
  for (const auto& [name, gradient] : given) {
    require(std::ranges::find(own, name, name_of) != own.end(), operation, ": gradients.parameters has ", name, ", which the module does not have");
  }
}

template <class M>
void require_gradients(std::string_view operation, const M& module, M& grads, std::initializer_list<Operand> inputs,
                       const Operand& output = {}) {
  require_gradients(operation, module, grads, std::span(inputs.begin(), inputs.size()), std::span(&output, 1));
}

}  // namespace polyhead::nn
