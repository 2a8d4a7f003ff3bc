// Reads and makes tensors of torch without a Python call, by DLPack's C exchange API, which torch has from 2.10.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "polyhead/tensor_view.h"

namespace polyhead::python {

namespace nb = nanobind;

// The interned Python string of an attribute's or option's name, made once.
#define POLYHEAD_INTERNED(word) \
  [] { \
    static PyObject* const interned = PyUnicode_InternFromString(word); \
    return interned; \
  }()

// Whether the object's type is torch.Tensor or torch.nn.Parameter itself. Subclasses do not qualify: they may define other values than those in their memory.
bool is_plain_tensor(nb::handle object);
bool is_tensor_of_torch(nb::handle object);  // torch.Tensor or any subclass

// Reads a plain tensor into `tensor`, which is valid while the object lives. Returns false if the tensor must be read in the slow way: it is on another
// device or has no memory of its own, or torch is older than 2.10.
bool read_tensor_memory(nb::handle object, nb::dlpack::dltensor& tensor);
// As read_tensor_memory(), for a function that records no gradient: also returns false if a gradient would be lost.
bool read_plain_tensor(nb::handle object, nb::dlpack::dltensor& tensor);

// A new tensor on the CPU, not initialised, and the tensor's memory. Its dimensions have the same order in memory as those of `order`; without `order` it is
// row-major. data is null if only torch knows the address.
struct NewTensor {
  nb::object object;
  void* data = nullptr;
  Strides strides;
};
NewTensor empty_tensor(nb::handle like, const Shape& shape, const char* dtype_name, nb::dlpack::dtype dtype, ConstTensorView order);

bool requires_grad(nb::handle tensor);  // whether a tensor of torch requires gradients
bool is_grad_enabled();                 // torch.is_grad_enabled(); torch must be imported

}  // namespace polyhead::python
