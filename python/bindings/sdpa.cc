#include "polyhead/sdpa.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "gil.h"
#include "options.h"

namespace polyhead::python {
namespace {

Shape with_last(ConstTensorView like, std::int64_t last) {
  Shape shape = like.shape();
  if (!shape.empty()) shape[-1] = last;
  return shape;
}

Shape without_last(ConstTensorView like) { return like.shape().first(std::max(like.rank() - 1, 0)); }

DType lse_dtype(DType dtype) { return is_floating(dtype) ? accumulation_dtype(dtype) : DType::f32; }

// Returns (out, lse or None, attention weights or None). A missing dimension counts as extent 0 here; sdpa_forward() refuses such inputs.
Tuple<nb::any, nb::any, nb::any> forward(nb::handle q, nb::handle k, nb::handle v, nb::handle options, nb::handle lse_flag, nb::handle out,
                                         nb::handle weights_flag, nb::handle weights) {
  const SdpaCall call("sdpa", options);
  const bool return_lse = read_flag(lse_flag, "return_lse"), return_attention_weights = read_flag(weights_flag, "return_attention_weights");
  const Array q_array = Array::required(q, "q"), k_array = Array::required(k, "k"), v_array = Array::required(v, "v");
  const ConstTensorView q_view = q_array.view(), v_view = v_array.view();
  const nb::object out_object = out.is_none() ? empty_array(q, with_last(q_view, v_view.rank() > 0 ? v_view.extent(-1) : 0), q_view.dtype()) : nb::borrow(out);
  const nb::object lse_object = return_lse ? empty_array(q, without_last(q_view), lse_dtype(q_view.dtype())) : nb::none();
  nb::object weights_object = nb::borrow(weights);
  if (weights.is_none() && return_attention_weights) weights_object = empty_array(q, with_last(q_view, k_array.view().rank() > 1 ? k_array.view().extent(-2) : 0), q_view.dtype());
  const Array out_array = Array::output(out_object, "out"), lse_array = Array::output(lse_object, "lse");
  const Array weights_array = Array::output(weights_object, "attention_weights");
  without_gil([&] {
    sdpa_forward({.q = q_view, .k = k_array.view(), .v = v_view, .out = out_array.view(), .lse = lse_array.view(), .attention_weights = weights_array.view()},
                 call.sdpa);
  });
  return nb::make_tuple(out_object, lse_object, weights_object);
}

// Returns (d_q, d_k, d_v, d_bias), with None for gradients that are not wanted.
Tuple<nb::any, nb::any, nb::any, nb::any> backward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle d_out,
                                                   nb::handle options, nb::handle d_bias_given, bool want_q, bool want_k, bool want_v, bool want_bias) {
  const SdpaCall call("sdpa_backward", options);
  const Array q_array = Array::required(q, "q"), k_array = Array::required(k, "k"), v_array = Array::required(v, "v");
  const Array out_array = Array::required(out, "out"), lse_array = Array::required(lse, "lse"), d_out_array = Array::required(d_out, "d_out");
  const auto gradient = [&](bool wanted, const Array& of) { return wanted ? empty_like(q, of) : nb::none(); };
  const nb::object d_q = gradient(want_q, q_array), d_k = gradient(want_k, k_array), d_v = gradient(want_v, v_array);
  const nb::object d_bias = d_bias_given.is_none() ? gradient(want_bias, call.keywords.bias) : nb::borrow(d_bias_given);
  const Array d_q_array = Array::output(d_q, "d_q"), d_k_array = Array::output(d_k, "d_k"), d_v_array = Array::output(d_v, "d_v");
  const Array d_bias_array = Array::output(d_bias, "d_bias");
  {
    const ReleasedGil released;
    sdpa_backward({.q = q_array.view(), .k = k_array.view(), .v = v_array.view(), .out = out_array.view(), .lse = lse_array.view(),
                   .d_out = d_out_array.view(), .d_q = d_q_array.view(), .d_k = d_k_array.view(), .d_v = d_v_array.view(), .d_bias = d_bias_array.view()},
                  call.sdpa);
  }
  return nb::make_tuple(d_q, d_k, d_v, d_bias);
}

// Reads the shapes only.
std::string explain_forward(nb::handle q, nb::handle k, nb::handle v, nb::handle options) {
  const SdpaCall call("explain", options);
  const Array q_array = Array::required(q, "q"), k_array = Array::required(k, "k"), v_array = Array::required(v, "v");
  const ConstTensorView q_view = q_array.view(), v_view = v_array.view();
  const nb::object out = empty_array(q, with_last(q_view, v_view.rank() > 0 ? v_view.extent(-1) : 0), q_view.dtype());
  const Array out_array = Array::output(out, "out");
  return explain({.q = q_view, .k = k_array.view(), .v = v_view, .out = out_array.view()}, call.sdpa);
}

void keep_bits(nb::handle p, nb::handle seed, nb::handle keep) {
  const double dropout = read_number(p, "dropout");
  const std::uint64_t key = read_seed(seed);
  if (keep.is_none()) throw nb::type_error("keep is None; it must be an array");
  const Array array = Array::output(keep, "keep");
  const ReleasedGil released;
  dropout_keep_bits(dropout, key, array.view());
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const Backend* backend : backends()) names.emplace_back(backend_name(*backend));
  return names;
}

}  // namespace

void bind_sdpa(nb::module_& m) {
  m.def("sdpa", &forward, any("q"), any("k"), any("v"), any("options"), any("return_lse"), any("out"),
        any("return_attention_weights"), any("attention_weights"));
  m.def("sdpa_backward", &backward, any("q"), any("k"), any("v"), any("out"), any("lse"),
        any("d_out"), any("options"), any("d_bias"), nb::arg("want_q"), nb::arg("want_k"), nb::arg("want_v"), nb::arg("want_bias"));
  m.def("explain", &explain_forward, any("q"), any("k"), any("v"), any("options"));
  m.def("dropout_keep_bits", &keep_bits, any("dropout"), any("seed"), any("keep"));
  m.def("backends", &backend_names);
}

}  // namespace polyhead::python
