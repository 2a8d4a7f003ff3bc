// The tensors of a checkpoint, taken one after the other by transformers' names. Errors name the tensor.
#pragma once

#include <cstring>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/nn/linear.h"
#include "polyhead/tensor.h"

namespace polyhead::models {

class Checkpoint {
 public:
  // `words`: names of the embedding without the prefix; the first one that the file has tells its dtype and whether its names have the prefix.
  Checkpoint(const std::filesystem::path& folder, std::string_view model_type, std::string_view prefix, std::span<const std::string_view> words)
      : file_(io::open_tensors(folder)), model_type_(model_type) {
    const io::NamedTensor* found = nullptr;
    for (const std::string_view name : words) {
      for (const std::string_view before : {prefix, std::string_view()}) {
        if (found != nullptr) break;
        found = named(cat(before, name, ".weight"));
        prefix_ = before;
        words_ = name;
      }
    }
    if (found == nullptr)
      fail(ErrorCode::format, file_name(), ": is not a model of the type ", model_type, ": none of its ", file_.tensors.size(), " tensors is named '", prefix, words[0], ".weight' or '", words[0],
           ".weight'");
    dtype_ = found->tensor.dtype();
    if (!is_floating(dtype_)) fail(ErrorCode::format, file_name(), ": '", found->name, "' is ", dtype_, "; a floating dtype is needed");
  }

  DType dtype() const { return dtype_; }
  const std::string& prefix() const { return prefix_; }
  const std::string& words() const { return words_; }  // which of the names the file has
  const Tensor* find(const std::string& name) const { return file_.find(name); }

  // A tensor on the file's memory. Error if it is missing or has another shape or dtype.
  Tensor take(const std::string& name, const Shape& shape) {
    const Tensor& tensor = taken(name, shape);
    if (tensor.dtype() != dtype_) fail(ErrorCode::format, file_name(), ": '", name, "' is ", tensor.dtype(), "; it must be ", dtype_, ", as the embedding");
    return part(tensor, [](TensorView view) { return view; });
  }

  // Of any floating dtype, rounded to the model's.
  Tensor take_rounded(const std::string& name, const Shape& shape) {
    const Tensor& tensor = taken(name, shape);
    if (!is_floating(tensor.dtype())) fail(ErrorCode::format, file_name(), ": '", name, "' is ", tensor.dtype(), "; a floating dtype is needed");
    return tensor.dtype() == dtype_ ? take(name, shape) : Tensor::copy_of(tensor.view(), dtype_);
  }

  // [out,in], stored so or transposed.
  nn::Linear linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias, bool transposed = false) {
    const Tensor stored = take(name + ".weight", transposed ? Shape{in, out} : Shape{out, in});
    Tensor weight = part(stored, [&](TensorView view) { return transposed ? view.transpose(0, 1) : view; });
    return nn::Linear(std::move(weight), bias ? take(name + ".bias", {out}) : Tensor());
  }

  // Error where the file has a tensor of the model that nothing took: without it, results would not be the checkpoint's.
  template <class F>
  void require_all_taken(const F& is_buffer) const {
    for (const io::NamedTensor& tensor : file_.tensors) {
      if (taken_.contains(tensor.name) || is_buffer(tensor.name)) continue;
      fail(ErrorCode::format, file_name(), ": '", tensor.name, "' ", tensor.tensor.shape(), " has no place in a model of the type ", model_type_, " with this config.json");
    }
  }

  void ignore(const std::string& name) { taken_.insert(name); }
  // Whether the file has the tensor with the bits of `other`.
  bool is_copy(const std::string& name, const Tensor& other) const {
    const Tensor* tensor = find(name);
    return tensor != nullptr && tensor->dtype() == other.dtype() && tensor->shape() == other.shape() &&
           std::memcmp(tensor->view().data(), other.view().data(), static_cast<std::size_t>(other.numel()) * info(other.dtype()).size) == 0;
  }

  std::string file_name() const { return file_.path.filename().string(); }

  // A part of a tensor, which keeps the memory of the whole alive.
  template <class F>
  static Tensor part(const Tensor& whole, const F& view) {
    const ConstTensorView all = whole.view();
    return Tensor::share(view(TensorView(const_cast<void*>(all.data()), all.dtype(), all.shape(), all.strides())), whole.owner());
  }

 private:
  const Tensor& taken(const std::string& name, const Shape& shape) {
    const Tensor* tensor = file_.find(name);
    if (tensor == nullptr) fail(ErrorCode::format, file_name(), ": has no tensor '", name, "', which config.json implies");
    if (tensor->shape() != shape) fail(ErrorCode::format, file_name(), ": '", name, "' is ", tensor->shape(), "; config.json makes it ", shape);
    taken_.insert(name);
    return *tensor;
  }

  const io::NamedTensor* named(std::string_view name) const {
    for (const io::NamedTensor& tensor : file_.tensors)
      if (tensor.name == name) return &tensor;
    return nullptr;
  }

  io::TensorFile file_;
  std::string model_type_, prefix_, words_;
  DType dtype_ = DType::f32;
  std::set<std::string> taken_;
};

}  // namespace polyhead::models
