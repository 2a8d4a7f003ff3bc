// Used by the bindings of all models: a model with the memory of its calls, the outputs of a pass that the caller named, and copies of parameters.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "core/index.h"
#include "gil.h"
#include "options.h"
#include "polyhead/models/value_norms.h"

namespace polyhead::python {

inline nb::object array_of(Tensor&& tensor) {
  auto* const held = new Tensor(std::move(tensor));
  return numpy_view(held->view(), nb::capsule(held, [](void* p) noexcept { delete static_cast<Tensor*>(p); }));
}

inline nb::object array_of(const std::vector<double>& values) {
  return array_of(Tensor::copy_of(ConstTensorView(values.data(), {std::ssize(values)})));
}

// Copies of a model's parameters, by name.
template <VisitsTensors M>
ByName parameters(const M& module) {
  ByName result;
  module.visit([&](const std::string& name, const Tensor& tensor) { result[name.c_str()] = array_of(Tensor::copy_of(tensor)); });
  return result;
}

// A model, and the memory that the model's calls reuse.
template <class M>
struct Held {
  M model;
  Workspace workspace{Parameters::constant};
};

template <class M>
ByName held_parameters(const Held<M>& held) {
  return parameters(held.model);
}

template <class F>
auto load_held(const F& load) {
  auto held = std::make_unique<Held<decltype(load())>>();
  without_gil([&] { held->model = load(); });
  return held;
}

// Provides the memory of v if value_norms are wanted, because the norms are computed from v. If v is not an output that the caller wants, a separate tensor is
// made. `v`, the view of the output, must outlive this object.
class ValuesForNorms {
 public:
  ValuesForNorms(TensorView norms, DType dtype, const Shape& shape, TensorView* v) : norms_(norms), v_(v) {
    if (!norms || *v) return;
    own_ = Tensor::uninitialised(dtype, shape);
    *v = own_;
  }
  // Call after the pass.
  template <class Model>
  void write(const Model& model, Executor* executor) const {
    if (!norms_) return;
    const Tensor norms = models::value_norms(model, *v_, {.executor = executor});
    copy(norms, norms_);
  }

 private:
  TensorView norms_;
  TensorView* v_;
  Tensor own_;
};

class NamedOutputs {
 public:
  struct Row {
    const char* name;
    TensorView* view;
    Shape shape;
    std::optional<DType> written = {};  // the dtype that the pass writes, if it is not that of the result; convert() converts the output
  };
  NamedOutputs(DType dtype, std::vector<Row> rows) : dtype_(dtype), rows_(std::move(rows)) { results_.reserve(rows_.size()); }

  // Makes a tensor for each name in `outputs`. A name that appears twice has only one tensor.
  void want(nb::handle outputs) {
    for (const std::string& name : read_words(outputs, "outputs")) {
      const auto known = std::ranges::find(rows_, name, [](const Row& row) { return std::string(row.name); });
      if (known == rows_.end()) {
        std::string names;
        for (std::size_t i = 0; i < rows_.size(); ++i) names += (i == 0 ? "" : i + 1 == rows_.size() ? " and " : ", ") + std::string(rows_[i].name);
        throw nb::value_error(cat("outputs has '", name, "'; ", names, " are known").c_str());
      }
      if (!*known->view) *known->view = results_.emplace_back(name, Tensor::uninitialised(known->written.value_or(dtype_), known->shape)).second.view();
    }
  }
  // Call after the pass.
  void convert() {
    for (auto& [name, tensor] : results_)
      if (tensor.dtype() != dtype_) tensor = Tensor::copy_of(Tensor(std::move(tensor)), dtype_);
  }
  nb::dict take() {
    nb::dict by_name;
    for (auto& [name, tensor] : results_) by_name[name.c_str()] = array_of(std::move(tensor));
    return by_name;
  }

 private:
  DType dtype_;
  std::vector<Row> rows_;
  std::vector<std::pair<std::string, Tensor>> results_;
};

}  // namespace polyhead::python
