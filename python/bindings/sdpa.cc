#include "polyhead/sdpa.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>

#include "bind.h"
#include "gil.h"
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

// Returns (d_q, d_k, d_v, d_bias, d_sink, d_relative_bias), with None for gradients that are not wanted.
Tuple<nb::any, nb::any, nb::any, nb::any, nb::any, nb::any> backward(nb::handle q_given, nb::handle k_given, nb::handle v_given, nb::handle out,
                                                                      nb::handle lse, nb::handle d_out, nb::handle options, nb::handle d_bias_given,
                                                                      bool want_q, bool want_k, bool want_v, bool want_bias, bool want_sink,
                                                                      bool want_relative_bias) {
  SdpaCall call("sdpa_backward", options);
  const ConstTensorView q = call.required(q_given, "q"), k = call.required(k_given, "k"), v = call.required(v_given, "v");
  const Result d_q("d_q", nb::none(), want_q, q_given, q), d_k("d_k", nb::none(), want_k, q_given, k),
      d_v("d_v", nb::none(), want_v, q_given, v);
  const Result d_bias("d_bias", d_bias_given, want_bias, q_given, call.sdpa.bias), d_sink("d_sink", nb::none(), want_sink, q_given, call.sdpa.sink);
  const Result d_relative_bias("d_relative_bias", nb::none(), want_relative_bias, q_given, call.sdpa.relative_bias.parameter());
  const SdpaBackward tensors{.q = q, .k = k, .v = v, .out = call.required(out, "out"), .lse = call.required(lse, "lse"),
                             .d_out = call.required(d_out, "d_out"), .d_q = d_q.view(), .d_k = d_k.view(), .d_v = d_v.view(),
                             .d_bias = d_bias.view(), .d_relative_bias = d_relative_bias.view(), .d_sink = d_sink.view()};
  without_gil([&] { sdpa_backward(tensors, call.sdpa); });
  return nb::make_tuple(d_q.object, d_k.object, d_v.object, d_bias.object, d_sink.object, d_relative_bias.object);
}

// The tensors of a tuple (q, k, v, bias, sink, relative_bias), None for those that are zeros.
SdpaTangents read_tangents(SdpaCall& call, nb::handle given, const char* const (&names)[6]) {
  if (!nb::isinstance<nb::tuple>(given) || nb::len(given) != 6) {
    throw nb::type_error("tangents and d_gradients are tuples (q, k, v, bias, sink, relative_bias)");
  }
  const nb::tuple parts = nb::borrow<nb::tuple>(given);
  const auto part = [&](std::size_t i) { return call.keep(Array::input(parts[i], names[i])); };
  return {.q = part(0), .k = part(1), .v = part(2), .bias = part(3), .relative_bias = part(5), .sink = part(4)};
}

// Returns (out_tangent, lse_tangent or None).
Tuple<nb::any, nb::any> jvp(nb::handle q_given, nb::handle k_given, nb::handle v_given, nb::handle out_given, nb::handle lse_given,
                            nb::handle tangents_given, nb::handle options, bool want_lse) {
  constexpr const char* kNames[] = {"tangents.q", "tangents.k", "tangents.v", "tangents.bias", "tangents.sink", "tangents.relative_bias"};
  SdpaCall call("sdpa_jvp", options);
  const ConstTensorView q = call.required(q_given, "q"), k = call.required(k_given, "k"), v = call.required(v_given, "v");
  const SdpaTangents tangents = read_tangents(call, tangents_given, kNames);
  const Result out("out_tangent", nb::none(), true, q_given, out_shape(q, v), q.dtype(), q);
  const Result lse("lse_tangent", nb::none(), want_lse, q_given, without_last(q), lse_dtype(q.dtype()));
  const SdpaJvp tensors{.q = q, .k = k, .v = v, .out = call.required(out_given, "out"), .lse = call.required(lse_given, "lse"),
                        .tangents = tangents, .out_tangent = out.view(), .lse_tangent = lse.view()};
  without_gil([&] { sdpa_jvp(tensors, call.sdpa); });
  return nb::make_tuple(out.object, lse.object);
}

// Returns (d_q, d_k, d_v, d_bias, d_sink, d_relative_bias, d_d_out), with None for those that are not wanted.
Tuple<nb::any, nb::any, nb::any, nb::any, nb::any, nb::any, nb::any> backward_backward(
    nb::handle q_given, nb::handle k_given, nb::handle v_given, nb::handle out, nb::handle lse, nb::handle d_out_given, nb::handle d_gradients_given,
    nb::handle options, bool want_q, bool want_k, bool want_v, bool want_bias, bool want_sink, bool want_relative_bias, bool want_d_out) {
  constexpr const char* kNames[] = {"d_gradients.q",    "d_gradients.k",    "d_gradients.v",
                                      "d_gradients.bias", "d_gradients.sink", "d_gradients.relative_bias"};
  SdpaCall call("sdpa_backward_backward", options);
  const ConstTensorView q = call.required(q_given, "q"), k = call.required(k_given, "k"), v = call.required(v_given, "v");
  const SdpaTangents d_gradients = read_tangents(call, d_gradients_given, kNames);
  const Result d_q("d_q", nb::none(), want_q, q_given, q), d_k("d_k", nb::none(), want_k, q_given, k),
      d_v("d_v", nb::none(), want_v, q_given, v);
  const Result d_bias("d_bias", nb::none(), want_bias, q_given, call.sdpa.bias), d_sink("d_sink", nb::none(), want_sink, q_given, call.sdpa.sink);
  const Result d_relative_bias("d_relative_bias", nb::none(), want_relative_bias, q_given, call.sdpa.relative_bias.parameter());
  const Result d_d_out("d_d_out", nb::none(), want_d_out, q_given, out_shape(q, v), q.dtype(), q);
  const SdpaBackwardBackward tensors{.q = q, .k = k, .v = v, .out = call.required(out, "out"), .lse = call.required(lse, "lse"),
                                     .d_out = call.required(d_out_given, "d_out"), .d_gradients = d_gradients, .d_q = d_q.view(), .d_k = d_k.view(),
                                     .d_v = d_v.view(), .d_d_out = d_d_out.view(), .d_bias = d_bias.view(),
                                     .d_relative_bias = d_relative_bias.view(), .d_sink = d_sink.view()};
  without_gil([&] { sdpa_backward_backward(tensors, call.sdpa); });
  return nb::make_tuple(d_q.object, d_k.object, d_v.object, d_bias.object, d_sink.object, d_relative_bias.object, d_d_out.object);
}

// explain: reads only the shapes of the arrays.
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
  const Result result("slopes", nb::none(), true, nb::none(), made);
  copy(made, result.view());
  return result.object;
}

std::int64_t bucket(nb::handle distance, nb::handle buckets, nb::handle bidirectional, nb::handle max_distance) {
  return relative_bucket(read_integer(distance, "distance", kLeast, kMost), read_integer(buckets, "buckets", 1, kMost),
                         read_flag(bidirectional, "bidirectional"), read_integer(max_distance, "max_distance", 1, kMost));
}

// Returns (lists, block of queries, block of keys).
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
        any("d_out"), any("options"), any("d_bias"), nb::arg("want_q"), nb::arg("want_k"), nb::arg("want_v"), nb::arg("want_bias"),
        nb::arg("want_sink"), nb::arg("want_relative_bias"));
  m.def("sdpa_jvp", &jvp, any("q"), any("k"), any("v"), any("out"), any("lse"), any("tangents"), any("options"), nb::arg("want_lse"));
  m.def("sdpa_backward_backward", &backward_backward, any("q"), any("k"), any("v"), any("out"), any("lse"), any("d_out"), any("d_gradients"),
        any("options"), nb::arg("want_q"), nb::arg("want_k"), nb::arg("want_v"), nb::arg("want_bias"), nb::arg("want_sink"),
        nb::arg("want_relative_bias"), nb::arg("want_d_out"));
  m.def("alibi_slopes", &slopes, any("heads"));
  m.def("local_blocks", &windows, any("length"), any("queries"), any("keys"));
  m.def("relative_bucket", &bucket, any("distance"), any("buckets"), any("bidirectional"), any("max_distance"));
  m.def("explain", &explain_forward, any("q"), any("k"), any("v"), any("options"), any("k_scale"), any("v_scale"));
  m.def("quantize_rows", &quantize, any("x"), any("out"), any("scale"), any("num_threads"));
  m.def("dropout_keep_bits", &keep_bits, any("dropout"), any("seed"), any("keep"));
  m.def("backends", &backend_names);
}

}  // namespace polyhead::python
