// Views of the caller's arrays, without a copy. NumPy arrays are read by the buffer protocol, arrays of PyTorch and JAX by DLPack.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <string>
#include <utility>

#include "polyhead/tensor_view.h"

namespace polyhead::python {

namespace nb = nanobind;

std::string kind_of(nb::handle object);  // the name of the object's type, such as "list"

// Result types of bound functions, as the generated stub file shows them.
template <class... Parts>
using Tuple = nb::typed<nb::tuple, Parts...>;
using ByName = nb::typed<nb::dict, nb::str, nb::any>;

// A view of a Python array, and the reference that keeps the array's memory alive. An Array made from None is absent and converts to false.
class Array {
 public:
  Array() = default;
  // An array that a call reads. TypeError, which mentions `name`, if the object is not an array, or has a dtype or device that polyhead does not read.
  static Array input(nb::handle object, const char* name);
  static Array required(nb::handle object, const char* name);  // like input(), but TypeError for None
  // A tensor of torch whose gradient the caller records. The Array is absent if the tensor's memory cannot be read directly (torch_tensors.h).
  static Array tensor_memory(nb::handle object, const char* name);
  // An array that a call writes: like input(), but ValueError if the array's memory is read-only.
  static Array output(nb::handle object, const char* name);
  // An array that the bindings made themselves. `view` is its memory.
  static Array made(nb::object object, TensorView view);

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
  bool take_plain_tensor(nb::handle object, const nb::dlpack::dltensor& tensor, const char* name);
  void take_buffer(nb::handle object, const char* name, bool writable);
  void take_dlpack(nb::handle object, const char* name, bool writable);
  void set_view(const char* name, void* data, const DTypeInfo& dtype, int rank, auto extent, auto stride);

  std::unique_ptr<Py_buffer, Release> buffer_;
  nb::ndarray<nb::ro> dlpack_;
  nb::object tensor_;  // a tensor of torch that was read by torch's C functions
  TensorView view_;
};

// The array that a call writes and returns: `given` if it is not None, else a new array if the result is wanted, else absent. A new array is not initialised.
// It is a PyTorch tensor if `like` is one, else a NumPy array. The dimensions of a new tensor have the same order in memory as those of `order`, a tensor of
// the same rank, except that the last dimension is always innermost. So if `order` is a view of a tensor [*,T,N*H], the heads of the result merge without a
// copy. Without `order` the array is row-major.
struct Result {
  Result(const char* name, nb::handle given, bool wanted, nb::handle like, const Shape& shape, DType dtype, ConstTensorView order = {});
  // A result with the shape and dtype of `of`. If `of` is absent, there is no result.
  Result(const char* name, nb::handle given, bool wanted, nb::handle like, ConstTensorView of);
  const TensorView& view() const { return array.view(); }

  nb::object object;  // None if absent
  Array array;

 private:
  explicit Result(std::pair<nb::object, Array> made);
};

// A copy of `view`: a PyTorch tensor if `like` is one, else a NumPy array.
nb::object copied(const char* name, ConstTensorView view, nb::handle like = nb::none());

// A NumPy array on the library's memory. The array keeps `owner` alive, and is read-only for a ConstTensorView. TypeError for bfloat16, because NumPy has no
// such dtype.
nb::object numpy_view(TensorView view, nb::handle owner);
nb::object numpy_view(ConstTensorView view, nb::handle owner);
nb::object torch_view(ConstTensorView view, nb::handle owner);  // like numpy_view(), but a PyTorch tensor, and writable: torch has no read-only tensors

DType dtype_named(const std::string& name);  // name: "float32", …; ValueError for an unknown name

}  // namespace polyhead::python
