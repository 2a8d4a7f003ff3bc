#include "polyhead/sdpa.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>

#include "bind.h"
#include "gil.h"
#include "gradients.h"
#include "options.h"
#include "polyhead/local_blocks.h"
#include "polyhead/quantize.h"
#include "polyhead/sdpa_derivatives.h"
#include "shapes.h"

namespace polyhead::python {
namespace {

// Returns (out, lse or None, attention weights or None).
Tuple<nb::any, nb::any, nb::any> forward(nb::handle q_given, nb::handle k_given, nb::handle v_given, nb::handle options,
                                         nb::handle lse_flag, nb::handle out_given, nb::handle weights_flag, nb::handle weights_given,
                                         nb::handle k_scale_given, nb::handle v_scale_given) {
  SdpaCall call("sdpa", options);
  const bool return_lse = read_flag(lse_flag, "return_lse"), return_attention_weights = read_flag(weights_flag, "return_attention_weights");
  const ConstTensorView q = call.required(q_given, "q"), k = call.required(k_given, "k"), v = call.required(v_given, "v");
  const Result out("out", out_given, true, q_given, out_shape(q, v), q.dtype(), q);
  const Result lse("lse", nb::none(), return_lse, q_given, without_last(q), lse_dtype(q.dtype()));
  const Result weights("attention_weights", weights_given, return_attention_weights, q_given, with_last(q, k.rank() > 1 ? k.extent(-2) : 0),
                       q.dtype());
  const ConstTensorView k_scale = call.keep(Array::input(k_scale_given, "k_scale")), v_scale = call.keep(Array::input(v_scale_given, "v_scale"));
  without_gil([&] {
    sdpa_forward({.q = q, .k = k, .v = v, .out = out.view(), .lse = lse.view(), .attention_weights = weights.view(), .k_scale = k_scale,
                  .v_scale = v_scale}, call.sdpa);
  });
  return nb::make_tuple(out.object, lse.object, weights.object);
}

// Returns the fields of polyhead.Gradients, with None for gradients that are not wanted.
Gradients backward(nb::handle q_given, nb::handle k_given, nb::handle v_given, nb::handle out, nb::handle lse, nb::handle d_out, nb::handle options, nb::handle d_bias,
                   const Wanted& wanted) {
  SdpaCall call("sdpa_backward", options);
  const ConstTensorView q = call.required(q_given, "q"), k = call.required(k_given, "k"), v = call.required(v_given, "v");
  const GradientResults gradients({.q = q, .k = k, .v = v, .out = {}}, call.sdpa, q_given, wanted, d_bias);
  SdpaBackward tensors{.q = q, .k = k, .v = v, .out = call.required(out, "out"), .lse = call.required(lse, "lse"), .d_out = call.required(d_out, "d_out"),
                       .d_q = {}, .d_k = {}, .d_v = {}};
  gradients.place(tensors);
  without_gil([&] { sdpa_backward(tensors, call.sdpa); });
  return gradients.objects();
}

// Returns (out_tangent, lse_tangent or None).
Tuple<nb::any, nb::any> jvp(nb::handle q_given, nb::handle k_given, nb::handle v_given, nb::handle out_given, nb::handle lse_given,
                            nb::handle tangents_given, nb::handle options, bool want_lse) {
  SdpaCall call("sdpa_jvp", options);
  const ConstTensorView q = call.required(q_given, "q"), k = call.required(k_given, "k"), v = call.required(v_given, "v");
  const SdpaTangents tangents = read_tangents(call, tangents_given, "tangents");
  const Result out("out_tangent", nb::none(), true, q_given, out_shape(q, v), q.dtype(), q);
  const Result lse("lse_tangent", nb::none(), want_lse, q_given, without_last(q), lse_dtype(q.dtype()));
  const SdpaJvp tensors{.q = q, .k = k, .v = v, .out = call.required(out_given, "out"), .lse = call.required(lse_given, "lse"),
                        .tangents = tangents, .out_tangent = out.view(), .lse_tangent = lse.view()};
  without_gil([&] { sdpa_jvp(tensors, call.sdpa); });
  return nb::make_tuple(out.object, lse.object);
}

// Returns the fields of polyhead.SecondGradients, with None for gradients that are not wanted.
Gradients backward_backward(nb::handle q_given, nb::handle k_given, nb::handle v_given, nb::handle out, nb::handle lse, nb::handle d_out_given, nb::handle d_gradients_given,
                            nb::handle options, const Wanted& wanted, bool want_d_out) {
  SdpaCall call("sdpa_backward_backward", options);
  const ConstTensorView q = call.required(q_given, "q"), k = call.required(k_given, "k"), v = call.required(v_given, "v");
  const SdpaTangents d_gradients = read_tangents(call, d_gradients_given, "d_gradients");
  const GradientResults gradients({.q = q, .k = k, .v = v, .out = {}}, call.sdpa, q_given, wanted);
  const Result d_d_out("d_d_out", nb::none(), want_d_out, q_given, out_shape(q, v), q.dtype(), q);
  SdpaBackwardBackward tensors{.q = q, .k = k, .v = v, .out = call.required(out, "out"), .lse = call.required(lse, "lse"), .d_out = call.required(d_out_given, "d_out"),
                               .d_gradients = d_gradients, .d_q = {}, .d_k = {}, .d_v = {}, .d_d_out = d_d_out.view()};
  gradients.place(tensors);
  without_gil([&] { sdpa_backward_backward(tensors, call.sdpa); });
  return gradients.objects({d_d_out.object});
}

// The function polyhead.explain. Reads the shapes and dtypes of the arrays, but not their elements.
std::string explain_forward(nb::handle q_given, nb::handle k_given, nb::handle v_given, nb::handle options, nb::handle k_scale, nb::handle v_scale) {
  SdpaCall call("explain", options);
  const ConstTensorView q = call.required(q_given, "q"), k = call.required(k_given, "k"), v = call.required(v_given, "v");
  const Result out("out", nb::none(), true, q_given, out_shape(q, v), q.dtype());
  return explain({.q = q, .k = k, .v = v, .out = out.view(), .k_scale = call.keep(Array::input(k_scale, "k_scale")),
                  .v_scale = call.keep(Array::input(v_scale, "v_scale"))}, call.sdpa);
}

// Returns (int8 elements, scales).
Tuple<nb::any, nb::any> quantize(nb::handle x_given, nb::handle out_given, nb::handle scale_given, nb::handle num_threads) {
  std::optional<LimitedThreads> threads = read_num_threads(num_threads);
  const Array x = Array::required(x_given, "x");
  const Result out("out", out_given, true, x_given, x.view().shape(), DType::i8), scale("scale", scale_given, true, x_given, without_last(x.view()), DType::f32);
  without_gil([&] { quantize_rows(x.view(), out.view(), scale.view(), threads ? &*threads : nullptr); });
  return nb::make_tuple(out.object, scale.object);
}

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min(), kMost = std::numeric_limits<std::int64_t>::max();

nb::object slopes(nb::handle heads) {
  const Tensor made = alibi_slopes(read_integer(heads, "heads", 0, 1 << 24));
  return copied("slopes", made);
}

std::int64_t bucket(nb::handle distance, nb::handle buckets, nb::handle bidirectional, nb::handle max_distance) {
  return relative_bucket(read_integer(distance, "distance", kLeast, kMost), read_integer(buckets, "buckets", 1, kMost),
                         read_flag(bidirectional, "bidirectional"), read_integer(max_distance, "max_distance", 1, kMost));
}

// Returns (block lists, queries of a block, keys of a block).
Tuple<nb::any, nb::int_, nb::int_> windows(nb::handle length, nb::handle queries, nb::handle keys) {
  constexpr std::int64_t kMostPositions = std::int64_t{1} << 31;
  const LocalBlocks made = local_blocks(read_integer(length, "length", 0, kMostPositions), read_integer(queries, "queries", 1, kMostPositions), read_integer(keys, "keys", 1, kMostPositions));
  const Result lists("blocks", nb::none(), true, nb::none(), made.lists);
  copy(made.lists, lists.view());
  return nb::make_tuple(lists.object, made.size.queries, made.size.keys);
}

void keep_bits(nb::handle p, nb::handle seed, nb::handle keep) {
  const double dropout = read_number(p, "dropout");
  const std::uint64_t key = read_seed(seed);
  if (keep.is_none()) throw nb::type_error("keep is None; it must be an array");
  const Array array = Array::output(keep, "keep");
  without_gil([&] { dropout_keep_bits(dropout, key, array.view()); });
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const Backend* backend : backends()) names.emplace_back(backend_name(*backend));
  return names;
}

}  // namespace

void bind_sdpa(nb::module_& m) {
  m.def("sdpa", &forward, any("q"), any("k"), any("v"), any("options"), any("return_lse"), any("out"),
        any("return_attention_weights"), any("attention_weights"), any("k_scale"), any("v_scale"));
  m.def("sdpa_backward", &backward, any("q"), any("k"), any("v"), any("out"), any("lse"),
        any("d_out"), any("options"), any("d_bias"), nb::arg("wanted"));
  m.def("sdpa_jvp", &jvp, any("q"), any("k"), any("v"), any("out"), any("lse"), any("tangents"), any("options"), nb::arg("want_lse"));
  m.def("sdpa_backward_backward", &backward_backward, any("q"), any("k"), any("v"), any("out"), any("lse"), any("d_out"), any("d_gradients"),
        any("options"), nb::arg("wanted"), nb::arg("want_d_out"));
  m.def("alibi_slopes", &slopes, any("heads"));
  m.def("local_blocks", &windows, any("length"), any("queries"), any("keys"));
  m.def("relative_bucket", &bucket, any("distance"), any("buckets"), any("bidirectional"), any("max_distance"));
  m.def("explain", &explain_forward, any("q"), any("k"), any("v"), any("options"), any("k_scale"), any("v_scale"));
  m.def("quantize_rows", &quantize, any("x"), any("out"), any("scale"), any("num_threads"));
  m.def("dropout_keep_bits", &keep_bits, any("dropout"), any("seed"), any("keep"));
  m.def("backends", &backend_names);
}

}  // namespace polyhead::python
