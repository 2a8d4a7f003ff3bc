// Makes the arrays of gradients, and reads tangents. Each argument that has a gradient in the table of polyhead/attention_arguments.h has a gradient and a
// tangent.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "options.h"
#include "polyhead/attention_arguments.h"

namespace polyhead::python {

using Gradients = Tuple<nb::any, nb::ellipsis>;
using Wanted = Tuple<bool, nb::ellipsis>;  // in the order of polyhead.Gradients, which is that of visit_gradients()

struct GradientResult {
  std::string_view argument;  // the argument's name; for a relative bias "slopes" or "table"
  Result result;
};

// The gradients that a backward pass returns; None for a gradient that is not wanted.
class GradientResults {
 public:
  // is_wanted(argument's name, index among the gradients) -> bool. d_bias: memory of the caller, or None.
  template <class IsWanted>
  GradientResults(const SdpaForward& inputs, const SdpaOptions& options, nb::handle like, const IsWanted& is_wanted, nb::handle d_bias = nb::none()) {
    all_.reserve(8);
    visit_differentiable(inputs, options, [&](std::string_view name, std::string_view argument, const ConstTensorView& view) {
      const bool wanted = is_wanted(argument, all_.size());
      all_.push_back({argument, Result(cat("d_", name).c_str(), name == "bias" ? d_bias : nb::handle(nb::none()), wanted, like, view)});
    });
  }
  GradientResults(const SdpaForward& inputs, const SdpaOptions& options, nb::handle like, const Wanted& wanted, nb::handle d_bias = nb::none())
      : GradientResults(inputs, options, like, [&](std::string_view, std::size_t i) { return i < wanted.size() && nb::cast<bool>(wanted[i]); }, d_bias) {
    if (wanted.size() != all_.size()) throw nb::type_error(cat("wanted has ", wanted.size(), " entries; it must have ", all_.size()).c_str());
  }

  // Sets the gradients of an SdpaBackward or SdpaBackwardBackward to the memory of these arrays.
  template <class Tensors>
  void place(Tensors& tensors) const {
    auto next = all_.begin();
    visit_gradients(tensors, [&](const char*, TensorView& view) { view = (next++)->result.view(); });
  }

  std::span<const GradientResult> all() const { return all_; }

  // A tuple of the gradients, followed by the objects of `more`.
  Gradients objects(std::initializer_list<nb::handle> more = {}) const {
    nb::list objects;
    for (const GradientResult& one : all_) objects.append(one.result.object);
    for (const nb::handle other : more) objects.append(other);
    return nb::tuple(objects);
  }

 private:
  std::vector<GradientResult> all_;
};

// Reads a tuple of tangents in the order of polyhead.Tangents; None means a tangent of zeros. name: the argument's name in error messages.
inline SdpaTangents read_tangents(SdpaCall& call, nb::handle given, std::string_view name) {
  SdpaTangents tangents;
  std::size_t count = 0;
  visit_gradients(tangents, [&](const char*, const ConstTensorView&) { ++count; });
  if (!nb::isinstance<nb::tuple>(given) || nb::len(given) != count) throw nb::type_error(cat(name, " must be a tuple of ", count, " tensors or None").c_str());
  const nb::tuple parts = nb::borrow<nb::tuple>(given);
  std::size_t i = 0;
  visit_gradients(tangents, [&](const char* of, ConstTensorView& view) { view = call.keep(Array::input(parts[i++], cat(name, ".", of).c_str())); });
  return tangents;
}

}  // namespace polyhead::python
