#include "arrays.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/text.h"
#include "torch_tensors.h"

namespace polyhead::python {
namespace {

// Python's str(object) in UTF-8. Characters that UTF-8 cannot encode (lone surrogates) become escapes.
std::string as_string(nb::handle object) {
  const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(nb::str(object).ptr(), "utf-8", "backslashreplace"));
  return bytes.is_valid() ? PyBytes_AsString(bytes.ptr()) : (PyErr_Clear(), "?");
}

// The name of an array's dtype, such as "complex64"; for an object without a dtype, the name of the object's type.
std::string dtype_text(nb::handle object) { return nb::hasattr(object, "dtype") ? as_string(nb::object(object.attr("dtype"))) : kind_of(object); }

std::string accepted_dtypes() {
  std::string list;
  for (const DTypeInfo& row : kDTypes) list += (list.empty() ? "" : ", ") + std::string(row.name);
  return list;
}

[[noreturn]] void refuse_dtype(nb::handle object, const char* name) {
  throw nb::type_error(cat(name, " has dtype ", dtype_text(object), "; polyhead reads ", accepted_dtypes(), ", in native byte order").c_str());
}

using Code = nb::dlpack::dtype_code;

Code code_of(const DTypeInfo& row) {
  switch (row.kind) {
    case DTypeKind::floating: return row.dtype == DType::bf16 ? Code::Bfloat : Code::Float;
    case DTypeKind::boolean: return Code::Bool;
    default: return row.name[0] == 'i' ? Code::Int : Code::UInt;
  }
}

nb::dlpack::dtype dlpack_dtype(const DTypeInfo& row) { return {static_cast<std::uint8_t>(code_of(row)), static_cast<std::uint8_t>(row.size * 8), 1}; }

// Finds a dtype of polyhead by its kind and size. This function and the next two return nullptr for a dtype that polyhead does not have.
const DTypeInfo* find_dtype(Code code, std::size_t size) {
  for (const DTypeInfo& row : kDTypes) {
    if (code_of(row) == code && row.size == size) return &row;
  }
  return nullptr;
}

// The dtype that a format string of the buffer protocol (PEP 3118) describes.
const DTypeInfo* dtype_of_format(const char* format, std::size_t size) {
  std::string_view letter = format == nullptr ? "B" : format;
  const bool foreign_order = !letter.empty() && (letter[0] == '>' || letter[0] == '!');
  if (!letter.empty() && std::string_view("@=<>!").find(letter[0]) != std::string_view::npos) letter.remove_prefix(1);
  if (letter.size() != 1 || (foreign_order && size > 1)) return nullptr;
  constexpr std::pair<std::string_view, Code> kLetters[] = {
      {"?", Code::Bool}, {"efd", Code::Float}, {"bhilqn", Code::Int}, {"BHILQN", Code::UInt}};
  for (const auto& [letters, code] : kLetters) {
    if (letters.find(letter) != std::string_view::npos) return find_dtype(code, size);
  }
  return nullptr;
}

const DTypeInfo* dtype_of_dlpack(nb::dlpack::dtype dtype) {
  return dtype.lanes == 1 && dtype.bits % 8 == 0 ? find_dtype(static_cast<Code>(dtype.code), dtype.bits / 8u) : nullptr;
}

// Python's isinstance(object, package.name). Does not import the package: if it is not imported yet, no object of the class can exist.
bool is_instance(nb::handle object, const char* package, const char* name) {
  const nb::object module = nb::steal(PyImport_GetModule(nb::str(package).ptr()));
  if (!module.is_valid() || !nb::hasattr(module, name)) {
    PyErr_Clear();
    return false;
  }
  return PyObject_IsInstance(object.ptr(), nb::object(module.attr(name)).ptr()) == 1;
}

// Whether the object's type is numpy.ndarray itself, not a subclass. Does not import NumPy: an array exists only if NumPy is imported. The class is never
// freed, so its pointer may be kept.
bool is_plain_numpy(nb::handle object) {
  static PyTypeObject* array = nullptr;
  if (array == nullptr) {
    const nb::object module = nb::steal(PyImport_GetModule(nb::str("numpy").ptr()));
    if (!module.is_valid() || !nb::hasattr(module, "ndarray")) {
      PyErr_Clear();
      return false;
    }
    array = reinterpret_cast<PyTypeObject*>(nb::object(module.attr("ndarray")).release().ptr());
  }
  return Py_TYPE(object.ptr()) == array;
}

bool is_torch(nb::handle object) { return is_plain_tensor(object) || (!is_plain_numpy(object) && is_instance(object, "torch", "Tensor")); }

// NumPy itself has no bfloat16; the package ml_dtypes adds it. A bfloat16 array is recognised by the name of its dtype.
bool is_numpy_bfloat16(nb::handle object) { return is_instance(object, "numpy", "ndarray") && dtype_text(object) == "bfloat16"; }

// The DLPack type of an object's device; the CPU if the object has no __dlpack_device__.
int dlpack_device(nb::handle object) {
  std::pair<int, int> device{nb::device::cpu::value, 0};
  try {
    if (nb::hasattr(object, "__dlpack_device__")) nb::try_cast(nb::object(object.attr("__dlpack_device__")()), device);
  } catch (nb::python_error&) {  // the device "meta" of torch has no DLPack type; every other error occurs again in the export, which reports it
    if (is_torch(object) && as_string(nb::object(object.attr("device"))) != "cpu") return -1;
  }
  return device.first;
}

// True for a subclass of torch.Tensor with its own __torch_function__, such as CausalBias. Then that function computes the values, and the memory may be
// unused.
bool hides_its_memory(nb::handle object) {
  if (!is_torch(object)) return false;
  const nb::object torch = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
  const nb::object tensor = torch.attr("Tensor");
  if (object.type().is(tensor)) return false;
  const nb::object function = object.type().attr("__torch_function__");
  if (function.is(torch.attr("_C").attr("_disabled_torch_function_impl"))) return false;  // torch.nn.Parameter has this function; its values are those in memory
  return !nb::hasattr(function, "__func__") || !function.attr("__func__").is(tensor.attr("__torch_function__").attr("__func__"));
}

// The error message of an object's __dlpack__(), such as "Can't export tensors that require gradient, …". Calls __dlpack__() again, because nanobind drops the
// message.
std::string dlpack_reason(nb::handle object) {
  try {
    static_cast<void>(nb::object(object.attr("__dlpack__")()));
    return "the DLPack export is malformed";
  } catch (nb::python_error& error) {
    return as_string(error.value());
  }
}

}  // namespace

std::string kind_of(nb::handle object) { return as_string(nb::object(object.type().attr("__name__"))); }

Array Array::input(nb::handle object, const char* name) { return from(object, name, false); }
Array Array::required(nb::handle object, const char* name) {
  if (object.is_none()) throw nb::type_error(cat(name, " is None; it must be an array").c_str());
  return from(object, name, false);
}
Array Array::output(nb::handle object, const char* name) { return from(object, name, true); }

Array Array::tensor_memory(nb::handle object, const char* name) {
  Array array;
  nb::dlpack::dltensor tensor;
  if (read_tensor_memory(object, tensor)) array.take_plain_tensor(object, tensor, name);
  return array;
}

Array Array::made(nb::object object, TensorView view) {
  Array array;
  array.tensor_ = std::move(object);
  array.view_ = view;
  return array;
}

Array Array::from(nb::handle object, const char* name, bool writable) {
  Array array;
  nb::dlpack::dltensor tensor;
  if (object.is_none() || (read_plain_tensor(object, tensor) && array.take_plain_tensor(object, tensor, name))) return array;
  if (PyObject_CheckBuffer(object.ptr())) {
    array.take_buffer(object, name, writable);
  } else if (nb::hasattr(object, "__dlpack__")) {
    array.take_dlpack(object, name, writable);
  } else {
    throw nb::type_error(cat(name, " is of type ", kind_of(object),
                              "; it must be an array of NumPy, PyTorch or JAX, or another object with the buffer protocol or DLPack").c_str());
  }
  return array;
}

// Returns false for a dtype that polyhead does not have. The caller then reads the object in the slow way, which reports why the object is refused.
bool Array::take_plain_tensor(nb::handle object, const nb::dlpack::dltensor& tensor, const char* name) {
  const DTypeInfo* dtype = dtype_of_dlpack(tensor.dtype);
  if (dtype == nullptr) return false;
  tensor_ = nb::borrow(object);
  set_view(name, static_cast<char*>(tensor.data) + tensor.byte_offset, *dtype, tensor.ndim, [&](int axis) { return tensor.shape[axis]; },
           [&](int axis) { return tensor.strides[axis]; });
  return true;
}

void Array::take_buffer(nb::handle object, const char* name, bool writable) {
  if (!is_plain_numpy(object) && is_instance(object, "numpy.ma", "MaskedArray")) {
    throw nb::type_error(cat(name, " is a masked array, whose mask polyhead does not read; pass ", name, ".data, and a mask as block=").c_str());
  }
  auto buffer = std::make_unique<Py_buffer>();
  bool bfloat16 = false;
  if (PyObject_GetBuffer(object.ptr(), buffer.get(), PyBUF_RECORDS_RO) != 0) {  // fails for bfloat16, which has no format in the buffer protocol
    PyErr_Clear();
    const bool numpy = is_instance(object, "numpy", "ndarray");
    if (!numpy && nb::hasattr(object, "__dlpack__")) return take_dlpack(object, name, writable);
    bfloat16 = is_numpy_bfloat16(object);
    if (!bfloat16 || PyObject_GetBuffer(nb::object(object.attr("view")("uint16")).ptr(), buffer.get(), PyBUF_RECORDS_RO) != 0) {
      PyErr_Clear();
      refuse_dtype(object, name);
    }
  }
  buffer_.reset(buffer.release());
  const Py_buffer& b = *buffer_;
  const DTypeInfo* dtype = bfloat16 ? &info(DType::bf16) : dtype_of_format(b.format, static_cast<std::size_t>(b.itemsize));
  if (dtype == nullptr) refuse_dtype(object, name);
  if (writable && b.readonly != 0) throw nb::value_error(cat(name, " is read-only, and this function writes to it").c_str());
  Py_ssize_t row_major[PyBUF_MAX_NDIM];  // used for arrays of ctypes, which give no strides even if strides are requested
  const Py_ssize_t* strides = b.strides;
  if (strides == nullptr) {
    PyBuffer_FillContiguousStrides(b.ndim, b.shape, row_major, static_cast<int>(b.itemsize), 'C');
    strides = row_major;
  }
  for (int axis = 0; axis < b.ndim; ++axis) {
    if (strides[axis] % b.itemsize != 0) {
      throw nb::value_error(cat(name, " has a stride of ", strides[axis], " bytes along axis ", axis, "; it must be a multiple of the ",
                                 b.itemsize, " bytes of an element").c_str());
    }
  }
  const auto extent = [&](int axis) { return b.shape[axis]; };
  set_view(name, b.buf, *dtype, b.ndim, extent, [&](int axis) { return strides[axis] / b.itemsize; });
}

void Array::take_dlpack(nb::handle object, const char* name, bool writable) {
  if (nb::object(nb::getattr(object, "requires_grad", nb::bool_(false))).is(nb::bool_(true))) {
    throw nb::type_error(cat(name, " requires grad, which this function does not record; use polyhead.torch, or pass ", name, ".detach()").c_str());
  }
  if (nb::hasattr(object, "is_neg") && nb::object(object.attr("is_neg")()).is(nb::bool_(true))) {
    throw nb::type_error(cat(name, " is negated lazily by torch, which DLPack does not report; pass ", name, ".resolve_neg()").c_str());
  }
  if (hides_its_memory(object)) {
    throw nb::type_error(cat(name, " is of type ", kind_of(object), ", a subclass of torch.Tensor that polyhead does not know; if its memory holds the numbers, pass ",
                              name, ".as_subclass(torch.Tensor)").c_str());
  }
  const auto refuse_device = [&](int device) {
    const std::string where = nb::hasattr(object, "device") ? as_string(nb::object(object.attr("device"))) : cat("of DLPack type ", device);
    throw nb::type_error(cat(name, " is on device ", where, "; polyhead computes on the CPU, so move it there first").c_str());
  };
  // Check the device before the export, because an export from another device may copy, wait or fail. The device of the exported array is checked too.
  constexpr int kCpu = nb::device::cpu::value;
  if (const int device = dlpack_device(object); device != kCpu) refuse_device(device);
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast(object, array, false)) {
    throw nb::type_error(cat(name, " cannot be read through DLPack (dtype ", dtype_text(object), "): ", dlpack_reason(object)).c_str());
  }
  if (array.device_type() != kCpu) refuse_device(array.device_type());
  if (nb::ndarray<> written; writable && !nb::try_cast(object, written, false)) {
    throw nb::value_error(cat(name, " is read-only, and this function writes to it").c_str());
  }
  dlpack_ = std::move(array);
  const DTypeInfo* dtype = dtype_of_dlpack(dlpack_.dtype());
  if (dtype == nullptr) refuse_dtype(object, name);
  const auto extent = [&](int axis) { return static_cast<std::int64_t>(dlpack_.shape(static_cast<std::size_t>(axis))); };
  const auto stride = [&](int axis) { return dlpack_.stride(static_cast<std::size_t>(axis)); };
  set_view(name, const_cast<void*>(dlpack_.data()), *dtype, static_cast<int>(dlpack_.ndim()), extent, stride);
}

// `extent` and `stride` are functions of the axis. Strides are in elements.
void Array::set_view(const char* name, void* data, const DTypeInfo& dtype, int rank, auto extent, auto stride) {
  if (rank > kMaxRank) throw nb::value_error(cat(name, " has ", rank, " dimensions; at most ", kMaxRank, " are allowed").c_str());
  if (reinterpret_cast<std::uintptr_t>(data) % dtype.size != 0) {
    throw nb::value_error(cat(name, " is not aligned: its memory does not begin at a multiple of the ", dtype.size, " bytes of an element").c_str());
  }
  Shape shape;
  Strides strides;
  for (int axis = 0; axis < rank; ++axis) {
    shape.push_back(extent(axis));
    strides.push_back(stride(axis));
  }
  view_ = TensorView(data, dtype.dtype, shape, strides);
}

namespace {

// Makes a new array, which is not initialised: a PyTorch tensor if `like` is one, else a NumPy array.
std::pair<nb::object, Array> empty_array(const char* name, nb::handle like, const Shape& shape, DType dtype, ConstTensorView order) {
  const std::string dtype_name(info(dtype).name);
  if (is_torch(like)) {
    NewTensor tensor = empty_tensor(like, shape, dtype_name.c_str(), dlpack_dtype(info(dtype)), order);
    Array array = tensor.data != nullptr ? Array::made(tensor.object, TensorView(tensor.data, dtype, shape, tensor.strides)) : Array::output(tensor.object, name);
    return {std::move(tensor.object), std::move(array)};
  }
  nb::list extents;
  for (const std::int64_t extent : shape) extents.append(extent);
  nb::object numpy_dtype = nb::str(dtype_name.c_str());
  if (dtype == DType::bf16) {
    if (!is_numpy_bfloat16(like)) throw nb::type_error("a result in bfloat16 needs out=: NumPy has no such dtype");
    numpy_dtype = like.attr("dtype");
  }
  nb::object made = nb::module_::import_("numpy").attr("empty")(nb::tuple(extents), nb::arg("dtype") = numpy_dtype);
  Array array = Array::output(made, name);
  return {std::move(made), std::move(array)};
}

std::pair<nb::object, Array> given_or_made(const char* name, nb::handle given, bool wanted, nb::handle like, const Shape& shape, DType dtype, ConstTensorView order) {
  if (given.is_none() && wanted) return empty_array(name, like, shape, dtype, order);
  return {nb::borrow(given), Array::output(given, name)};
}

}  // namespace

Result::Result(const char* name, nb::handle given, bool wanted, nb::handle like, const Shape& shape, DType dtype, ConstTensorView order)
    : Result(given_or_made(name, given, wanted, like, shape, dtype, order)) {}

Result::Result(std::pair<nb::object, Array> made) : object(std::move(made.first)), array(std::move(made.second)) {}

Result::Result(const char* name, nb::handle given, bool wanted, nb::handle like, ConstTensorView of)
    : Result(name, given, wanted && of, like, of.shape(), of.dtype()) {}

nb::object copied(const char* name, ConstTensorView view, nb::handle like) {
  const Result result(name, nb::none(), true, like, view);
  copy(view, result.view());
  return result.object;
}

namespace {

// Kind...: nb::numpy or nb::pytorch, then nb::ro if the array is read-only.
template <class... Kind>
nb::object array_on(ConstTensorView view, nb::handle owner) {
  const DTypeInfo& row = info(view.dtype());
  std::vector<std::size_t> shape;
  for (const std::int64_t extent : view.shape()) shape.push_back(static_cast<std::size_t>(extent));
  const nb::ndarray<Kind...> array(const_cast<void*>(view.data()), shape.size(), shape.data(), owner, view.strides().begin(), dlpack_dtype(row));
  return nb::cast(array, nb::rv_policy::reference);
}

ConstTensorView require_in_numpy(ConstTensorView view) {
  if (view.dtype() == DType::bf16) throw nb::type_error("the array is in bfloat16, which NumPy does not have");
  return view;
}

}  // namespace

nb::object numpy_view(TensorView view, nb::handle owner) { return array_on<nb::numpy>(require_in_numpy(view), owner); }
nb::object numpy_view(ConstTensorView view, nb::handle owner) { return array_on<nb::numpy, nb::ro>(require_in_numpy(view), owner); }
nb::object torch_view(ConstTensorView view, nb::handle owner) { return array_on<nb::pytorch>(view, owner); }

DType dtype_named(const std::string& name) {
  for (const DTypeInfo& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  throw nb::value_error(cat("dtype is '", name, "'; it may be one of ", accepted_dtypes()).c_str());
}

}  // namespace polyhead::python
