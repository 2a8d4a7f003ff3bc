// The tensors of a model folder, taken one after the other by name, with checks against config.json.
#pragma once

#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/nn/linear.h"
#include "polyhead/nn/norm.h"

namespace polyhead::models {

class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& folder) : file_(io::open_tensors(folder)) {}

  // The prefix of the one tensor whose name ends with `ending`: "vit." or "". Error if there is none or there are two. Its dtype becomes that of all.
  std::string prefix_of(std::string_view ending, std::string_view model_type) {
    const io::NamedTensor* found = nullptr;
    for (const io::NamedTensor& tensor : file_.tensors) {
      const std::string_view name = tensor.name;
      if (!name.ends_with(ending) || (name.size() > ending.size() && name[name.size() - ending.size() - 1] != '.')) continue;
      if (found != nullptr) fail(ErrorCode::format, file_name(), ": holds two models, '", found->name, "' and '", name, "'; one is needed");
      found = &tensor;
    }
    if (found == nullptr)
      fail(ErrorCode::format, file_name(), ": is not a model of the type ", model_type, ": none of its ", file_.tensors.size(), " tensors is named '", ending, "', with or without a prefix");
    if (!is_floating(found->tensor.dtype())) fail(ErrorCode::format, file_name(), ": '", found->name, "' is ", found->tensor.dtype(), "; a floating dtype is needed");
    if (first_.empty()) dtype_ = found->tensor.dtype(), first_ = found->name;
    return found->name.substr(0, found->name.size() - ending.size());
  }

  DType dtype() const { return dtype_; }
  const Tensor* find(std::string_view name) const { return file_.find(name); }
  bool has(std::string_view name) const { return find(name) != nullptr; }

  // A tensor on the file's memory. Extents of 1 at the start may differ. Error if it is missing or has another shape or dtype.
  Tensor take(const std::string& name, const Shape& shape) {
    const Tensor* tensor = find(name);
    if (tensor == nullptr) fail(ErrorCode::format, file_name(), ": has no tensor '", name, "', which config.json implies");
    const Shape& stored = tensor->shape();
    if (without_ones(stored) != without_ones(shape)) fail(ErrorCode::format, file_name(), ": '", name, "' is ", stored, "; config.json makes it ", shape);
    if (tensor->dtype() != dtype_) fail(ErrorCode::format, file_name(), ": '", name, "' is ", tensor->dtype(), "; it must be ", dtype_, ", as '", first_, "'");
    taken_.insert(name);
    return writable(*tensor, [&](TensorView view) { return view.reshape(shape); });
  }
  nn::Linear linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias = true) {
    Tensor weight = take(name + ".weight", {out, in});
    return nn::Linear(std::move(weight), bias ? take(name + ".bias", {out}) : Tensor());
  }
  nn::Norm norm(const std::string& name, std::int64_t width, double epsilon) {
    Tensor weight = take(name + ".weight", {width});
    return nn::LayerNorm(std::move(weight), take(name + ".bias", {width}), epsilon);
  }

  // Tensors whose names begin with this need not be taken.
  void ignore(std::string_view beginning) { ignored_.emplace(beginning); }
  // Error where the file has a tensor that nothing took: without it, results would not be the checkpoint's.
  void require_all_taken(std::string_view model_type) const {
    for (const io::NamedTensor& tensor : file_.tensors) {
      if (taken_.contains(tensor.name)) continue;
      bool ignored = false;
      for (const std::string& beginning : ignored_) ignored = ignored || tensor.name.starts_with(beginning);
      if (!ignored) fail(ErrorCode::format, file_name(), ": '", tensor.name, "' ", tensor.tensor.shape(), " has no place in a model of the type ", model_type, " with this config.json");
    }
  }

  std::string file_name() const { return file_.path.filename().string(); }

  // A part of a stored tensor's memory.
  template <class F>
  static Tensor writable(const Tensor& stored, const F& view) {
    const ConstTensorView all = stored.view();
    return Tensor::share(view(TensorView(const_cast<void*>(all.data()), all.dtype(), all.shape(), all.strides())), stored.owner());
  }
  // The rows [first, last) of a linear layer, on its memory.
  static nn::Linear rows_of(const nn::Linear& whole, std::int64_t first, std::int64_t last) {
    const auto slice = [&](const Tensor& tensor) { return tensor ? writable(tensor, [&](TensorView view) { return view.slice(0, first, last); }) : Tensor(); };
    return {slice(whole.weight), slice(whole.bias)};
  }

 private:
  static Shape without_ones(Shape shape) {
    while (!shape.empty() && shape[0] == 1) shape.erase(0);
    return shape;
  }

  io::TensorFile file_;
  std::string first_;  // the tensor that has the dtype of all
  DType dtype_ = DType::f32;
  std::set<std::string> taken_, ignored_;
};

}  // namespace polyhead::models
