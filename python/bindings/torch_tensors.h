// Tensors of torch by DLPack's C exchange API, which torch has from 2.10: views and new tensors without a Python call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "polyhead/tensor_view.h"

namespace polyhead::python {

namespace nb = nanobind;

// Whether the object's type is torch.Tensor or torch.nn.Parameter itself. Subclasses have a meaning of their own.
bool is_plain_tensor(nb::handle object);
bool is_tensor_of_torch(nb::handle object);  // or of a subclass

// Reads a plain tensor; it stays valid while the object lives. False if the tensor must be looked at more closely: another device, no memory
// of its own, or an older torch.
bool read_tensor_memory(nb::handle object, nb::dlpack::dltensor& tensor);
// The same for a function that records no gradient: also false if a gradient would be lost.
bool read_plain_tensor(nb::handle object, nb::dlpack::dltensor& tensor);

// A new tensor on the CPU, not initialised, and its memory. Its dimensions lie in memory in the order of those of `order`, or row-major if that is absent.
// data is null if only torch knows where the memory is.
struct NewTensor {
  nb::object object;
  void* data = nullptr;
  Strides strides;
};
NewTensor empty_tensor(nb::handle like, const Shape& shape, const char* dtype_name, nb::dlpack::dtype dtype, ConstTensorView order);

bool requires_grad(nb::handle tensor);  // of a tensor of torch
bool is_grad_enabled();                 // torch.is_grad_enabled(); torch must be imported

}  // namespace polyhead::python
