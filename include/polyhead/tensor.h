// A tensor owns its memory (64-byte aligned, row major), or shares it with an owner such as a mapped file.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <utility>

#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead {

// A value type: copying a tensor copies its elements. A view of a tensor is valid until the tensor is destroyed, moved from, moved to, or
// assigned a tensor of another shape or dtype.
class POLYHEAD_OWNER Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, const Shape& shape);  // The elements are zero.
  Tensor(const Tensor& other);
  // If this tensor has the shape and dtype of `other`, the elements are copied into its memory: its views stay valid and show the new elements, and so do all
  // tensors that share the memory (share()). Otherwise, or if elements of this tensor share memory with each other, this tensor allocates new memory. If this
  // tensor is a parameter, call clear() of the workspaces with Parameters::constant afterwards. If the assignment throws, nothing has changed.
  Tensor& operator=(const Tensor& other);
  Tensor(Tensor&& other) noexcept : owner_(std::move(other.owner_)), view_(std::exchange(other.view_, {})) {}  // After the move `other` has no elements.
  Tensor& operator=(Tensor&& other) noexcept {  // takes the memory of `other`; views of this tensor's old memory are no longer valid
    owner_ = std::move(other.owner_);
    view_ = std::exchange(other.view_, {});
    return *this;
  }
  ~Tensor() = default;

  template <class T>
  static Tensor of(const Shape& shape, std::span<const T> values);
  template <class T>
  static Tensor of(const Shape& shape, std::initializer_list<T> values) {
    return of<T>(shape, std::span<const T>(values.begin(), values.size()));
  }
  // Returns a tensor whose elements are not set, for results that are written completely later.
  static Tensor uninitialised(DType dtype, const Shape& shape);
  // Returns a tensor in the memory of `view`. `owner` keeps this memory alive.
  static Tensor share(TensorView view, std::shared_ptr<void> owner);
  // Returns the object that keeps the memory alive. Tensor::share(t.view().slice(0, 0, 2), t.owner()) is a tensor on the first two rows of t.
  const std::shared_ptr<void>& owner() const { return owner_; }
  // Returns a contiguous copy of a view, converted if the dtype differs.
  static Tensor copy_of(ConstTensorView view) { return copy_of(view, view.dtype()); }
  static Tensor copy_of(ConstTensorView view, DType dtype);
  static Tensor copy_of(const Tensor& tensor) { return copy_of(tensor.view()); }
  static Tensor copy_of(const Tensor& tensor, DType dtype) { return copy_of(tensor.view(), dtype); }

  explicit operator bool() const { return static_cast<bool>(view_); }
  // A view is valid only while its tensor lives. A temporary tensor therefore does not convert to a view: store the tensor in a variable first.
  operator TensorView() & { return view_; }             // NOLINT(google-explicit-constructor)
  operator ConstTensorView() const& { return view_; }   // NOLINT(google-explicit-constructor)
  operator TensorView() && = delete;
  operator ConstTensorView() const&& = delete;
  TensorView view() & { return view_; }
  ConstTensorView view() const& { return view_; }
  ConstTensorView view() const&& = delete;
  template <class T>
  T* data() {
    return view_.template data<T>();
  }
  template <class T>
  const T* data() const {
    return ConstTensorView(view_).template data<T>();
  }
  DType dtype() const { return view_.dtype(); }
  const Shape& shape() const { return view_.shape(); }
  std::int64_t extent(int axis) const { return view_.extent(axis); }
  std::int64_t numel() const { return view_.numel(); }

 private:
  std::shared_ptr<void> owner_;
  TensorView view_;
};

template <class T>
Tensor Tensor::of(const Shape& shape, std::span<const T> values) {
  Tensor tensor(DTypeOf<T>::value, shape);
  const Shape given{static_cast<std::int64_t>(values.size())};
  copy(ConstTensorView(values.data(), given).reshape(shape), tensor);
  return tensor;
}

}  // namespace polyhead
#pragma GCC visibility pop
