// Arrays of the caller's as views, without a copy: NumPy's through the buffer protocol, others' (PyTorch, JAX) through DLPack.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <string>

#include "polyhead/tensor_view.h"

namespace polyhead::python {

namespace nb = nanobind;

std::string kind_of(nb::handle object);  // "list"

// What the stub says of a result.
template <class... Parts>
using Tuple = nb::typed<nb::tuple, Parts...>;
using ByName = nb::typed<nb::dict, nb::str, nb::any>;

// A view and what keeps its memory alive. Absent when made from None.
class Array {
 public:
  Array() = default;
  // TypeError, naming `name`, where the object is no array, or of a dtype or device that polyhead does not read.
  static Array input(nb::handle object, const char* name);
  static Array required(nb::handle object, const char* name);  // the same, and TypeError for None
  // The same for memory that is written: ValueError where it is read-only.
  static Array output(nb::handle object, const char* name);

  explicit operator bool() const { return static_cast<bool>(view_); }
  const TensorView& view() const { return view_; }

 private:
  struct Release {
    void operator()(Py_buffer* buffer) const {
      PyBuffer_Release(buffer);
      delete buffer;
    }
  };

  static Array from(nb::handle object, const char* name, bool writable);
  void take_buffer(nb::handle object, const char* name, bool writable);
  void take_dlpack(nb::handle object, const char* name, bool writable);

  std::unique_ptr<Py_buffer, Release> buffer_;
  nb::ndarray<nb::ro> dlpack_;
  TensorView view_;
};

// Uninitialised memory of the caller's kind: a PyTorch tensor when `like` is one, else a NumPy array.
nb::object empty_array(nb::handle like, const Shape& shape, DType dtype);
nb::object empty_like(nb::handle like, const Array& of);  // shaped as `of`; None where that is absent

// The library's memory as a NumPy array that keeps `owner` alive, read-only where the view is. TypeError for bfloat16, which NumPy does not have.
nb::object numpy_view(TensorView view, nb::handle owner);
nb::object numpy_view(ConstTensorView view, nb::handle owner);

DType dtype_named(const std::string& name);  // "float32", …; ValueError for others

}  // namespace polyhead::python
