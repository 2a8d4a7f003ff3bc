// Tensors of torch by DLPack's C exchange API, which torch has from 2.10: views and new tensors without a Python call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "polyhead/tensor_view.h"

namespace polyhead::python {

namespace nb = nanobind;

// Whether the object's type is torch.Tensor or torch.nn.Parameter itself. Subclasses have a meaning of their own.
bool is_plain_tensor(nb::handle object);

// Reads a plain tensor; it stays valid while the object lives. False if the tensor must be looked at more closely: another device, no memory
// of its own, a gradient that would be lost, or an older torch.
bool read_plain_tensor(nb::handle object, nb::dlpack::dltensor& tensor);

// A new tensor on the CPU, not initialised, whose dimensions lie in memory in the order of those of `order`, or row-major if that is absent.
nb::object empty_tensor(nb::handle like, const Shape& shape, const char* dtype_name, nb::dlpack::dtype dtype, ConstTensorView order);

}  // namespace polyhead::python
