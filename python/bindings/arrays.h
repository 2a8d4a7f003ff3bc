// Views of the caller's arrays without a copy: NumPy arrays through the buffer protocol, others (PyTorch, JAX) through DLPack.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <string>
#include <utility>

#include "polyhead/tensor_view.h"

namespace polyhead::python {

namespace nb = nanobind;

std::string kind_of(nb::handle object);  // the name of its type: "list"

// Types of results for the generated stub file.
template <class... Parts>
using Tuple = nb::typed<nb::tuple, Parts...>;
using ByName = nb::typed<nb::dict, nb::str, nb::any>;

// A view of an array, and the reference that keeps its memory alive. Absent (false) if made from None.
class Array {
 public:
  Array() = default;
  // An array to read. TypeError with `name` in its message if the object is no array, or has a dtype or device that polyhead does not read.
  static Array input(nb::handle object, const char* name);
  static Array required(nb::handle object, const char* name);  // as input(), and TypeError for None
  // A tensor of torch whose gradient the caller records; absent if it cannot be read directly (torch_tensors.h).
  static Array tensor_memory(nb::handle object, const char* name);
  // An array to write: as input(), and ValueError if its memory is read-only.
  static Array output(nb::handle object, const char* name);
  // An array that was made with this memory.
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
  nb::object tensor_;  // of torch, read by its C API
  TensorView view_;
};

// An array that a call writes and returns: `given`, else a new one if it is wanted, else absent. A new array is not initialised; it is a
// PyTorch tensor if `like` is one, else a NumPy array. The dimensions of a new tensor lie in memory in the order of those of `order`, which has
// its rank, the last one innermost: heads that are views of a layer's output then merge without a copy. Without `order` it is row-major.
struct Result {
  Result(const char* name, nb::handle given, bool wanted, nb::handle like, const Shape& shape, DType dtype, ConstTensorView order = {});
  // With the shape and dtype of `of`; not wanted if that is absent.
  Result(const char* name, nb::handle given, bool wanted, nb::handle like, ConstTensorView of);
  const TensorView& view() const { return array.view(); }

  nb::object object;  // None if absent
  Array array;

 private:
  explicit Result(std::pair<nb::object, Array> made);
};

// A NumPy array on the library's memory, which keeps `owner` alive; read-only for a ConstTensorView. TypeError for bfloat16, which NumPy
// does not have.
nb::object numpy_view(TensorView view, nb::handle owner);
nb::object numpy_view(ConstTensorView view, nb::handle owner);
nb::object torch_view(ConstTensorView view, nb::handle owner);  // as numpy_view(), a PyTorch tensor; torch has none that are read-only

DType dtype_named(const std::string& name);  // "float32", …; ValueError for others

}  // namespace polyhead::python
