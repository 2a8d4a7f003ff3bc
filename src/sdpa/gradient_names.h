// Checks at compile time that the structs of gradients and of tangents have a member for each argument with a gradient (attention_arguments.h), in the same
// order.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "polyhead/attention_arguments.h"

namespace polyhead::inline internal {

// A list of names. If a name is added several times in succession, it is stored once.
class GradientNames {
 public:
  constexpr void add(std::string_view name) {
    if (count_ == 0 || names_[count_ - 1] != name) names_[count_++] = name;
  }
  constexpr std::size_t size() const { return count_; }
  constexpr std::string_view operator[](std::size_t i) const { return names_[i]; }
  constexpr bool operator==(const GradientNames&) const = default;

 private:
  std::array<std::string_view, 16> names_;
  std::size_t count_ = 0;
};

// Adds the names of the options and inputs that have a gradient.
struct AddGradientNames {
  GradientNames& names;
  constexpr void operator()(const Argument& argument, const ConstTensorView&) const {
    if (argument.has_gradient) names.add(argument.option());
  }
};

template <class... Tables>
constexpr GradientNames names_by_table(const Tables&... tables) {
  GradientNames names;
  (visit_arguments(tables, TensorArguments{AddGradientNames{names}}), ...);
  return names;
}

template <class Tensors>
constexpr GradientNames names_of_gradients(const Tensors& tensors) {
  GradientNames names;
  visit_gradients(tensors, [&names](const char* name, const auto&) { names.add(name); });
  return names;
}

// These variables have no definition. Only their types are used, by static_assert.
extern const SdpaForward any_inputs;
extern const SdpaOptions any_options;
extern const SdpaTangents any_tangents;
extern const SdpaBackward any_backward;
extern const SdpaBackwardBackward any_backward_backward;

constexpr GradientNames kGradientNames = names_by_table(any_inputs, any_options);
// Number of the inputs with a gradient (q, k and v). They come before the options.
constexpr std::size_t kInputGradients = names_by_table(any_inputs).size();
static_assert(names_of_gradients(any_tangents) == kGradientNames, "SdpaTangents must have a member for each argument with a gradient in attention_arguments.h, in the same order");
static_assert(names_of_gradients(any_backward) == kGradientNames, "SdpaBackward must have a member for each argument with a gradient in attention_arguments.h, in the same order");
static_assert(names_of_gradients(any_backward_backward) == kGradientNames, "SdpaBackwardBackward must have a member for each argument with a gradient in attention_arguments.h, in the same order");

}  // namespace polyhead::inline internal
