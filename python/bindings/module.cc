#include <nanobind/nanobind.h>

#include <cstring>

#include "bind.h"
#include "polyhead/error.h"
#include "polyhead/version.h"

namespace nb = nanobind;

namespace {

PyObject* exception_of(polyhead::ErrorCode code) {
  switch (code) {
    case polyhead::ErrorCode::io: return PyExc_OSError;
    case polyhead::ErrorCode::communication: return PyExc_ConnectionError;
    default: return PyExc_ValueError;
  }
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // otherwise nanobind would report objects that are still alive when a program exits
  m.attr("version") = POLYHEAD_VERSION;
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const polyhead::Error& error) {
      // A message may contain names of files and tensors that are not valid UTF-8.
      const nb::object message = nb::steal(PyUnicode_DecodeUTF8(error.what(), static_cast<Py_ssize_t>(std::strlen(error.what())), "backslashreplace"));
      PyErr_SetObject(exception_of(error.code()), message.ptr());
    }
  });
  polyhead::python::bind_arguments(m);
  polyhead::python::bind_sdpa(m);
  polyhead::python::bind_torch_attention(m);
  polyhead::python::bind_score_program(m);
  polyhead::python::bind_maps(m);
  polyhead::python::bind_layer(m);
  polyhead::python::bind_layer_pass(m);
  polyhead::python::bind_pair_bias(m);
  polyhead::python::bind_cache(m);
  polyhead::python::bind_files(m);
  polyhead::python::bind_device(m);
  polyhead::python::bind_distributed(m);
  polyhead::python::bind_jax(m);
  polyhead::python::bind_viewer(m);
  polyhead::python::bind_models(m);
  polyhead::python::bind_image_models(m);
  polyhead::python::bind_program(m);
}
