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

// Whether the object's type is torch.Tensor or torch.nn.Parameter itself. False for subclasses, because their values may differ from the numbers in their
// memory.
bool is_plain_tensor(nb::handle object);
bool is_tensor_of_torch(nb::handle object);  // torch.Tensor or any subclass

// Reads a plain tensor into `tensor`, which is valid as long as the object lives. Returns false if the tensor must be read in the slow way: if it is on another
// device, has no memory or is negated lazily, or if torch is older than 2.10.
bool read_tensor_memory(nb::handle object, nb::dlpack::dltensor& tensor);
// Like read_tensor_memory(), for functions that record no gradient: also returns false if the tensor's gradient would be lost.
bool read_plain_tensor(nb::handle object, nb::dlpack::dltensor& tensor);

// A new tensor on the CPU, which is not initialised, and the tensor's memory. The dimensions have the same order in memory as those of `order`; without `order`
// the tensor is row-major. data is null if the address must be obtained from torch.
struct NewTensor {
  nb::object object;
  void* data = nullptr;
  Strides strides;
};
NewTensor empty_tensor(nb::handle like, const Shape& shape, const char* dtype_name, nb::dlpack::dtype dtype, ConstTensorView order);

bool requires_grad(nb::handle tensor);  // whether a tensor of torch requires gradients
bool is_grad_enabled();                 // torch.is_grad_enabled(); torch must be imported

}  // namespace polyhead::python
