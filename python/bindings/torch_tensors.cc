#include "torch_tensors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace polyhead::python {
namespace {

// DLPackExchangeAPI of DLPack 1.2 (dlpack.h). The functions return 0, or set a Python error.
struct ExchangeApi {
  struct Version {
    std::uint32_t major, minor;
  } version;
  const void* previous;
  int (*allocate)(nb::dlpack::dltensor* prototype, void** out, void* context, void (*fail)(void*, const char*, const char*));
  int (*managed_of_object)(void* object, void** out);
  int (*object_of_managed)(void* managed, void** out);
  int (*view_of_object)(void* object, nb::dlpack::dltensor* out);  // may be null
  int (*stream)(int device, std::int32_t id, void** out);
};

// Python objects of torch, which are looked up once, when the first tensor is read.
struct Torch {
  PyTypeObject* tensor = nullptr;
  PyTypeObject* parameter = nullptr;
  const ExchangeApi* api = nullptr;  // null for torch before 2.10
  PyObject* is_grad_enabled = nullptr;
  PyObject* is_neg = nullptr;  // torch.Tensor.is_neg
};

// The first members of DLManagedTensorVersioned. torch's from_dlpack() copies shape and strides, so their arrays need not outlive the call.
struct ManagedTensor {
  ExchangeApi::Version version;
  void* context;
  void (*deleter)(ManagedTensor*);
  std::uint64_t flags;
  nb::dlpack::dltensor tensor;
};

const ExchangeApi* exchange_api(nb::handle tensor_type) {
  constexpr const char* kName = "dlpack_exchange_api";
  const nb::object capsule = nb::getattr(tensor_type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), kName)) return nullptr;
  const auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), kName));
  return api->version.major == 1 && api->view_of_object != nullptr ? api : nullptr;
}

Torch torch;

// The objects of torch; null until torch is imported.
const Torch* find_torch(nb::handle object) {
  if (torch.tensor != nullptr) return &torch;
#ifdef Py_LIMITED_API  // the limited API hides tp_name
  const nb::str text = nb::steal<nb::str>(PyType_GetName(Py_TYPE(object.ptr())));
  const std::string_view name = text.c_str();
#else
  const std::string_view name = Py_TYPE(object.ptr())->tp_name;
#endif
  if (name != "Tensor" && name != "Parameter") return nullptr;
  const nb::object module = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
  if (!module.is_valid() || !nb::hasattr(module, "nn")) {
    PyErr_Clear();
    return nullptr;
  }
  const nb::object tensor = module.attr("Tensor"), parameter = module.attr("nn").attr("Parameter");
  torch.api = exchange_api(tensor);
  torch.is_grad_enabled = nb::object(module.attr("is_grad_enabled")).release().ptr();
  torch.is_neg = nb::object(tensor.attr("is_neg")).release().ptr();
  torch.parameter = reinterpret_cast<PyTypeObject*>(parameter.inc_ref().ptr());
  torch.tensor = reinterpret_cast<PyTypeObject*>(tensor.inc_ref().ptr());
  return &torch;
}

bool is_true(PyObject* answer) {
  const nb::object object = nb::steal(answer);
  if (!object.is_valid()) PyErr_Clear();
  return answer == Py_True;
}

nb::object integers(const auto& numbers) {
  const nb::object tuple = nb::steal(PyTuple_New(numbers.size()));
  for (int i = 0; i < numbers.size(); ++i) PyTuple_SetItem(tuple.ptr(), i, PyLong_FromLongLong(numbers[i]));
  return tuple;
}

// The strides of a dense tensor whose dimensions have the same order in memory as those of `order`, except that the last dimension is innermost. Strides of
// dimensions with extent 0 or 1 are ignored. If another dimension of `order` has stride 0, elements of `order` share memory; then the result is row-major.
Strides strides_in_order(const Shape& shape, ConstTensorView order) {
  std::array<int, kMaxRank> axes{};
  int rank = shape.size(), singles = 0;
  bool overlap = !order || order.rank() != rank;
  if (!overlap) {
    for (int axis = 0; axis < rank - 1; ++axis) {
      if (order.extent(axis) <= 1) axes[static_cast<std::size_t>(singles++)] = axis;
    }
    int count = singles;
    for (int axis = 0; axis < rank - 1; ++axis) {
      if (order.extent(axis) <= 1) continue;
      overlap = overlap || order.stride(axis) == 0;
      axes[static_cast<std::size_t>(count++)] = axis;
    }
    std::stable_sort(axes.begin() + singles, axes.begin() + count, [&](int a, int b) { return order.stride(a) > order.stride(b); });
    if (rank > 0) axes[static_cast<std::size_t>(rank - 1)] = rank - 1;
  }
  if (overlap) {
    for (int axis = 0; axis < rank; ++axis) axes[static_cast<std::size_t>(axis)] = axis;
  }
  Strides strides;
  for (int axis = 0; axis < rank; ++axis) strides.push_back(0);
  std::int64_t stride = 1;
  for (int i = rank; i-- > 0;) {
    strides[axes[static_cast<std::size_t>(i)]] = stride;
    stride *= std::max<std::int64_t>(shape[axes[static_cast<std::size_t>(i)]], 1);
  }
  return strides;
}

// Makes a new tensor by DLPack's C functions, which takes half the time of a call of torch.
NewTensor allocated(const ExchangeApi& api, const Shape& shape, const Strides& strides, nb::dlpack::dtype dtype) {
  std::int64_t extents[kMaxRank], steps[kMaxRank], size = 1;
  std::copy(shape.begin(), shape.end(), extents);
  std::copy(strides.begin(), strides.end(), steps);
  for (const std::int64_t extent : shape) size *= extent;
  nb::dlpack::dltensor prototype{};
  prototype.device = {nb::device::cpu::value, 0};
  prototype.ndim = 1;
  prototype.dtype = dtype;
  prototype.shape = &size;
  const auto fail = [](void*, const char*, const char* message) { PyErr_SetString(PyExc_RuntimeError, message); };
  void *managed = nullptr, *tensor = nullptr;
  if (api.allocate(&prototype, &managed, nullptr, fail) != 0) throw nb::python_error();
  nb::dlpack::dltensor& memory = static_cast<ManagedTensor*>(managed)->tensor;
  void* const data = static_cast<char*>(memory.data) + memory.byte_offset;
  memory.ndim = shape.size();
  memory.shape = extents;
  memory.strides = steps;
  if (api.object_of_managed(managed, &tensor) != 0) throw nb::python_error();
  return {nb::steal(static_cast<PyObject*>(tensor)), data, strides};
}

}  // namespace

bool is_plain_tensor(nb::handle object) {
  const Torch* known = find_torch(object);
  return known != nullptr && (Py_TYPE(object.ptr()) == known->tensor || Py_TYPE(object.ptr()) == known->parameter);
}

bool is_tensor_of_torch(nb::handle object) {
  return is_plain_tensor(object) || (torch.tensor != nullptr && PyType_IsSubtype(Py_TYPE(object.ptr()), torch.tensor) != 0);
}

bool read_tensor_memory(nb::handle object, nb::dlpack::dltensor& tensor) {
  if (!is_plain_tensor(object) || torch.api == nullptr) return false;
  if (torch.api->view_of_object(object.ptr(), &tensor) != 0) {
    PyErr_Clear();
    return false;
  }
  bool empty = false;
  for (int axis = 0; axis < tensor.ndim; ++axis) empty = empty || tensor.shape[axis] == 0;
  if (tensor.device.device_type != nb::device::cpu::value || (tensor.data == nullptr && !empty)) return false;
  PyObject* const argument = object.ptr();
  return !is_true(PyObject_Vectorcall(torch.is_neg, &argument, 1, nullptr));
}

bool read_plain_tensor(nb::handle object, nb::dlpack::dltensor& tensor) {
  return read_tensor_memory(object, tensor) && !(requires_grad(object) && is_grad_enabled());
}

NewTensor empty_tensor(nb::handle like, const Shape& shape, const char* name, nb::dlpack::dtype dtype, ConstTensorView order) {
  const Strides strides = strides_in_order(shape, order);
  const Torch* const found = find_torch(like);
  if (found != nullptr && found->api != nullptr) return allocated(*found->api, shape, strides, dtype);
  // Do not use torch.empty, which makes a tensor on torch's default device.
  const nb::object extents = integers(shape), steps = integers(strides);
  static PyObject* const kDtype = PyTuple_Pack(1, POLYHEAD_INTERNED("dtype"));
  const nb::object dtype_object = nb::steal(PyImport_GetModule(POLYHEAD_INTERNED("torch"))).attr(name);
  PyObject* const arguments[] = {like.ptr(), extents.ptr(), steps.ptr(), dtype_object.ptr()};
  nb::object tensor = nb::steal(PyObject_VectorcallMethod(POLYHEAD_INTERNED("new_empty_strided"), arguments, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, kDtype));
  if (!tensor.is_valid()) throw nb::python_error();
  return {std::move(tensor), nullptr, strides};
}

bool requires_grad(nb::handle tensor) { return is_true(PyObject_GetAttr(tensor.ptr(), POLYHEAD_INTERNED("requires_grad"))); }

bool is_grad_enabled() { return torch.is_grad_enabled != nullptr && is_true(PyObject_CallNoArgs(torch.is_grad_enabled)); }

}  // namespace polyhead::python
