// Attention whose bias is computed from a pair tensor z, for polyhead.torch. The caller gives the parameters with each call.
#include "polyhead/nn/pair_bias.h"

#include <nanobind/nanobind.h>

#include <array>
#include <optional>

#include "bind.h"
#include "gil.h"
#include "options.h"
#include "shapes.h"

namespace polyhead::python {
namespace {

constexpr const char* kPairParameters[] = {"w_ln_z", "b_ln_z", "w_proj_z", "b_proj_z"};

Tensor shared(TensorView view) { return view ? Tensor::share(view, nullptr) : Tensor(); }

// Makes a PairBias that uses the memory of four views. If the weight of the norm is absent, ones are used.
nn::PairBias pair_on(const std::array<TensorView, 4>& views, double epsilon) {
  nn::PairBias pair;
  pair.norm.weight = shared(views[0]), pair.norm.bias = shared(views[1]), pair.norm.epsilon = epsilon;
  pair.projection.weight = shared(views[2]), pair.projection.bias = shared(views[3]);
  if (!pair.norm.weight && views[2].rank() == 2) {
    pair.norm.weight = Tensor(views[2].dtype(), {views[2].extent(1)});
    fill(pair.norm.weight, 1);
  }
  return pair;
}

// The arguments that all four functions below have. The object keeps the arrays alive.
struct PairCall {
  PairCall(nb::handle z, nb::handle parameters_given, nb::handle epsilon_given, nb::handle num_threads)
      : parameters(nb::cast<nb::tuple>(parameters_given)), epsilon(nb::cast<double>(epsilon_given)), threads(read_num_threads(num_threads)) {
    z_array = Array::required(z, "z");
    std::array<TensorView, 4> views;
    for (std::size_t i = 0; i < views.size(); ++i) {
      arrays[i] = Array::input(parameters[i], kPairParameters[i]);
      views[i] = arrays[i].view();
    }
    pair = pair_on(views, epsilon);
  }
  nn::RunOptions options() { return {.executor = threads ? &*threads : nullptr, .workspace = nullptr}; }

  nb::tuple parameters;
  double epsilon;
  std::optional<LimitedThreads> threads;
  Array z_array;
  std::array<Array, 4> arrays;
  nn::PairBias pair;
};

// The memory of the gradients of z and of the parameters. Either all parameters get gradients, or none.
struct PairResults {
  PairResults(PairCall& call, nb::handle like, bool want_z, bool want_parameters)
      : d_z("d_z", nb::none(), want_z, like, call.z_array.view()),
        d_parameters{Result("d_w_ln_z", nb::none(), want_parameters, like, call.pair.norm.weight), Result("d_b_ln_z", nb::none(), want_parameters, like, call.pair.norm.bias),
                     Result("d_w_proj_z", nb::none(), want_parameters, like, call.pair.projection.weight),
                     Result("d_b_proj_z", nb::none(), want_parameters, like, call.pair.projection.bias)},
        gradients(want_parameters ? pair_on({d_parameters[0].view(), d_parameters[1].view(), d_parameters[2].view(), d_parameters[3].view()}, call.epsilon) : nn::PairBias()) {}
  nb::tuple of_parameters() const { return nb::make_tuple(d_parameters[0].object, d_parameters[1].object, d_parameters[2].object, d_parameters[3].object); }

  Result d_z;
  Result d_parameters[4];
  nn::PairBias gradients;
};

// Returns the bias [*,N,T,S]. parameters: (w_ln_z, b_ln_z, w_proj_z, b_proj_z).
nb::object pair_bias_of(nb::handle z, nb::handle parameters, nb::handle epsilon, nb::handle num_threads) {
  PairCall call(z, parameters, epsilon, num_threads);
  const ConstTensorView view = call.z_array.view();
  if (view.rank() < 3 || !call.pair.projection.weight) throw nb::value_error("pair_bias: z must be [*,T,S,C] and w_proj_z [N,C]");
  Shape shape = view.shape().first(view.rank() - 1);
  shape.insert(view.rank() - 3, call.pair.heads());
  const Result bias("bias", nb::none(), true, z, shape, view.dtype());
  without_gil([&] { call.pair.forward(view, bias.view(), call.options()); });
  return bias.object;
}

// Returns (d_z, gradients of the parameters), with None for gradients that are not wanted.
Tuple<nb::any, nb::any> pair_bias_backward(nb::handle z, nb::handle parameters, nb::handle epsilon, nb::handle d_bias_given, bool want_z, bool want_parameters,
                                           nb::handle num_threads) {
  PairCall call(z, parameters, epsilon, num_threads);
  const Array d_bias = Array::required(d_bias_given, "d_bias");
  PairResults results(call, z, want_z, want_parameters);
  without_gil([&] {
    call.pair.backward(call.z_array.view(), d_bias.view(), {.x = results.d_z.view(), .parameters = want_parameters ? &results.gradients : nullptr}, call.options());
  });
  return nb::make_tuple(results.d_z.object, results.of_parameters());
}

// Converts the tuple (q, k, v, attend_keys or None, scale or None, empty_rows).
struct PairHeads {
  explicit PairHeads(nb::handle given) {
    const nb::tuple parts = nb::cast<nb::tuple>(given);
    constexpr const char* kNames[] = {"q", "k", "v"};
    for (std::size_t i = 0; i < 3; ++i) arrays[i] = Array::required(parts[i], kNames[i]);
    arrays[3] = Array::input(parts[3], "attend_keys");
    input = {.q = arrays[0].view(), .k = arrays[1].view(), .v = arrays[2].view(), .attend_keys = arrays[3].view()};
    if (!parts[4].is_none()) input.scale = nb::cast<double>(parts[4]);
    input.empty_rows = choice("empty_rows", read_word(parts[5], "empty_rows"), kEmptyRows);
  }
  std::array<Array, 4> arrays;
  nn::PairBiasSdpa input;
};

// Returns (out [*,N,T,V], lse [*,N,T]).
Tuple<nb::any, nb::any> pair_bias_attention(nb::handle heads_given, nb::handle z, nb::handle parameters, nb::handle epsilon, nb::handle num_threads) {
  PairCall call(z, parameters, epsilon, num_threads);
  PairHeads heads(heads_given);
  heads.input.z = call.z_array.view();
  const ConstTensorView q = heads.input.q;
  const Result out("out", nb::none(), true, z, out_shape(q, heads.input.v), q.dtype(), q), lse("lse", nb::none(), true, z, without_last(q), lse_dtype(q.dtype()));
  without_gil([&] { nn::pair_bias_sdpa_forward(call.pair, heads.input, out.view(), lse.view(), call.options()); });
  return nb::make_tuple(out.object, lse.object);
}

// Returns (d_q, d_k, d_v, d_z, gradients of the parameters), with None for gradients that are not wanted. want: five bools in this order, True = compute.
Tuple<nb::any, nb::any, nb::any, nb::any, nb::any> pair_bias_attention_backward(nb::handle heads_given, nb::handle z, nb::handle parameters, nb::handle epsilon, nb::handle out_given,
                                                                                nb::handle lse_given, nb::handle d_out_given, nb::handle want_given, nb::handle num_threads) {
  PairCall call(z, parameters, epsilon, num_threads);
  PairHeads heads(heads_given);
  heads.input.z = call.z_array.view();
  const Array out = Array::required(out_given, "out"), lse = Array::required(lse_given, "lse"), d_out = Array::required(d_out_given, "d_out");
  const nb::tuple want = nb::cast<nb::tuple>(want_given);
  const auto wanted = [&](std::size_t i) { return nb::cast<bool>(want[i]); };
  const Result d_q("d_q", nb::none(), wanted(0), z, heads.input.q), d_k("d_k", nb::none(), wanted(1), z, heads.input.k), d_v("d_v", nb::none(), wanted(2), z, heads.input.v);
  PairResults results(call, z, wanted(3), wanted(4));
  const bool of_parameters = wanted(4);
  without_gil([&] {
    nn::pair_bias_sdpa_backward(call.pair, heads.input, out.view(), lse.view(), d_out.view(),
                                {.q = d_q.view(), .k = d_k.view(), .v = d_v.view(), .z = results.d_z.view(), .parameters = of_parameters ? &results.gradients : nullptr},
                                call.options());
  });
  return nb::make_tuple(d_q.object, d_k.object, d_v.object, results.d_z.object, results.of_parameters());
}

}  // namespace

void bind_pair_bias(nb::module_& m) {
  m.def("pair_bias", &pair_bias_of, any("z"), any("parameters"), any("epsilon"), any("num_threads"));
  m.def("pair_bias_backward", &pair_bias_backward, any("z"), any("parameters"), any("epsilon"), any("d_bias"), nb::arg("want_z"), nb::arg("want_parameters"), any("num_threads"));
  m.def("pair_bias_attention", &pair_bias_attention, any("heads"), any("z"), any("parameters"), any("epsilon"), any("num_threads"));
  m.def("pair_bias_attention_backward", &pair_bias_attention_backward, any("heads"), any("z"), any("parameters"), any("epsilon"), any("out"), any("lse"), any("d_out"), any("want"),
        any("num_threads"));
}

}  // namespace polyhead::python
