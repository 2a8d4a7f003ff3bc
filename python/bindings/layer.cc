#include "layer.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <cmath>
#include <memory>

#include "bind.h"
#include "cache.h"
#include "gil.h"

namespace polyhead::python {
namespace {

// The activations of a forward pass, and the inputs whose memory the activations refer to.
struct Saved : LayerCall {
  using LayerCall::LayerCall;
  nn::MultiHeadAttention::Saved saved;
  nb::object layer;
};


// Calls f(name, member) for every field of a configuration. The constructor and `config` both use this list.
template <class Config, class F>
void visit_config(Config& c, F&& f) {
  f("query_width", c.query_width);
  f("key_width", c.key_width);
  f("value_width", c.value_width);
  f("heads", c.heads);
  f("kv_heads", c.kv_heads);
  f("head_width", c.head_width);
  f("value_head_width", c.value_head_width);
  f("output_width", c.output_width);
  f("bias", c.bias);
  f("output_bias", c.output_bias);
  f("output", c.output);
  f("gate", c.gate);
  f("global_query", c.global_query);
  f("axis", c.axis);
  f("add_bias_kv", c.add_bias_kv);
  f("add_zero_attn", c.add_zero_attn);
  f("sink", c.sink);
  f("qk_norm", c.qk_norm);
  f("dropout", c.dropout);
  f("scale", c.scale);
  f("softcap", c.softcap);
  f("empty_rows", c.empty_rows);
  f("precision", c.precision);
  f("dtype", c.dtype);
  f("seed", c.seed);
}

void read_field(const char* name, nb::handle given, bool& field) { field = read_flag(given, name); }
void read_field(const char* name, nb::handle given, nn::OutputProjection& field) { field = read_flag(given, name) ? nn::OutputProjection::linear : nn::OutputProjection::none; }
void read_field(const char* name, nb::handle given, nn::Gate& field) { field = read_flag(given, name) ? nn::Gate::sigmoid : nn::Gate::none; }
void read_field(const char* name, nb::handle given, nn::GlobalQuery& field) { field = choice(name, read_word(given, name), kGlobalQueries); }
void read_field(const char* name, nb::handle given, EmptyRows& field) { field = choice(name, read_word(given, name), kEmptyRows); }
void read_field(const char* name, nb::handle given, Precision& field) { field = choice(name, read_word(given, name), kPrecisions); }
void read_field(const char* name, nb::handle given, DType& field) { field = dtype_named(read_word(given, name)); }
void read_field(const char* name, nb::handle given, double& field) { field = read_number(given, name); }
void read_field(const char* name, nb::handle given, std::optional<double>& field) { field = read_number(given, name); }
void read_field(const char* name, nb::handle given, int& field) { field = static_cast<int>(read_integer(given, name, -kMaxRank, kMaxRank)); }
// Refuses 0, which means "default" in the library. In Python, None means the default.
void read_field(const char* name, nb::handle given, std::int64_t& field) { field = read_integer(given, name, 1, std::int64_t{1} << 40); }
void read_field(const char*, nb::handle given, std::optional<std::uint64_t>& field) { field = read_seed(given); }

nb::object write_field(nn::OutputProjection field) { return nb::bool_(field == nn::OutputProjection::linear); }
nb::object write_field(nn::Gate field) { return nb::bool_(field == nn::Gate::sigmoid); }
nb::object write_field(nn::GlobalQuery field) { return nb::cast(word_of(kGlobalQueries, field)); }
nb::object write_field(EmptyRows field) { return nb::cast(word_of(kEmptyRows, field)); }
nb::object write_field(Precision field) { return nb::cast(word_of(kPrecisions, field)); }
nb::object write_field(std::optional<std::uint64_t> seed) { return nb::cast(seed.value_or(0)); }
nb::object write_field(DType field) { return nb::cast(std::string(info(field).name)); }
template <class T>
nb::object write_field(const T& field) { return nb::cast(field); }

// Runs a forward pass. Returns the output: `out_given`, or a new array if `out_given` is None.
nb::object run(const Layer& layer, LayerCall& call, nb::handle query, nb::handle key, nb::handle value, nb::handle out_given,
               nn::MultiHeadAttention::Saved* saved) {
  call.input.query = call.required(query, "query");
  call.input.key = call.keep(Array::input(key, "key"));
  call.input.value = call.keep(Array::input(value, "value"));
  if (!call.options.mask.causal && layer.causal) call.options.mask.causal = Diagonal::bottom_right();
  if (!layer.rotary_of.empty() && !call.options.rotary.cos) {
    throw nb::value_error(cat("MultiHeadAttention: layers of the layout ", layer.rotary_of,
                               " rotate q and k by position; give rotary (RotaryEmbedding makes it), or set layer.needs_rotary = False").c_str());
  }
  // A frozen layer has a workspace for constant parameters, which refuses gradients of parameters. The layer allows such gradients, so a pass with `saved` runs
  // without the workspace.
  call.options.workspace = saved && layer.frozen() ? nullptr : &layer.workspace;
  const Shape shape = out_given.is_none() ? layer.layer.output_shape(call.input) : Shape();
  const Result out("out", out_given, true, query, shape, call.input.query.dtype());
  const CacheInUse in_use(call.cache);
  without_gil([&] { layer.layer.forward(call.input, out.view(), call.options, saved); });
  return out.object;
}

Tuple<nb::any, Saved> forward(nb::handle self, nb::handle query, nb::handle key, nb::handle value, nb::handle out, nb::handle keywords) {
  auto saved = std::make_unique<Saved>("MultiHeadAttention.forward", keywords);
  saved->layer = nb::borrow(self);
  const nb::object object = run(nb::cast<const Layer&>(self), *saved, query, key, value, out, &saved->saved);
  return nb::make_tuple(object, std::move(saved));
}

nb::object evaluate(const Layer& layer, nb::handle query, nb::handle key, nb::handle value, nb::handle out, nb::handle keywords) {
  LayerCall call("MultiHeadAttention.__call__", keywords);
  return run(layer, call, query, key, value, out, nullptr);
}

// The number of threads for a backward pass or a map. If `given` is None, it is that of the forward pass.
std::optional<LimitedThreads> threads_of(nb::handle given, const Saved& saved) {
  return given.is_none() ? saved.threads : read_num_threads(given);
}

ByName config_dict(const Layer& layer) {
  nb::dict result;
  visit_config(layer.layer.config, [&](const char* name, const auto& field) { result[name] = write_field(field); });
  return result;
}

ByName parameters(nb::handle self) {
  nb::dict result;
  Layer& layer = nb::cast<Layer&>(self);
  layer.layer.visit([&](const std::string& name, Tensor& tensor) {
    result[name.c_str()] = layer.frozen() ? numpy_view(std::as_const(tensor).view(), self) : numpy_view(tensor.view(), self);
  });
  return result;
}

// The parameters for a pickle. bfloat16 is stored as uint16 with the same bits.
ByName bits(nb::handle self) {
  nb::dict result;
  nb::cast<Layer&>(self).layer.visit([&](const std::string& name, Tensor& tensor) {
    const TensorView view = tensor.view();
    result[name.c_str()] = numpy_view(TensorView(view.data(), view.dtype() == DType::bf16 ? DType::u16 : view.dtype(), view.shape(), view.strides()), self);
  });
  return result;
}

// Returns the fields of LayerGradients. A gradient is None if it is not wanted, or if its input was not given to the forward pass.
Tuple<nb::any, nb::any, nb::any, nb::any, nb::any, nb::any, nb::any, nb::any, std::optional<ByName>> backward(
    const Saved& saved, nb::handle d_out_given, nb::handle inputs, nb::handle parameters_too, nb::handle d_bias, nb::handle num_threads) {
  const bool want_inputs = read_flag(inputs, "inputs"), want_parameters = read_flag(parameters_too, "parameters");
  std::optional<LimitedThreads> threads = threads_of(num_threads, saved);
  const Layer& layer = nb::cast<const Layer&>(saved.layer);
  const Array d_out = Array::required(d_out_given, "d_out");
  const auto gradient = [&](const char* name, ConstTensorView of, nb::handle given = nb::none()) {
    return Result(name, given, want_inputs, d_out_given, of);
  };
  const Result query = gradient("d_query", saved.input.query), key = gradient("d_key", saved.input.key),
               value = gradient("d_value", saved.input.value),
               projected_key = gradient("d_projected_key", saved.input.projected_key),
               projected_value = gradient("d_projected_value", saved.input.projected_value),
               bias = gradient("d_bias", saved.options.bias, d_bias), sink = gradient("d_sink", saved.options.sink);
  const Result relative_bias = gradient("d_relative_bias", saved.options.relative_bias.parameter());
  auto gradients = want_parameters ? std::make_unique<Layer>() : nullptr;
  without_gil([&] {
    if (gradients) gradients->layer = nn::zeros_like(layer.layer);
    layer.layer.backward(saved.saved, d_out.view(),
                         {.query = query.view(), .key = key.view(), .value = value.view(), .projected_key = projected_key.view(),
                          .projected_value = projected_value.view(), .bias = bias.view(), .relative_bias = relative_bias.view(), .sink = sink.view(),
                          .parameters = gradients ? &gradients->layer : nullptr},
                         {.executor = threads ? &*threads : nullptr, .workspace = layer.frozen() ? nullptr : &layer.workspace});
  });
  return nb::make_tuple(query.object, key.object, value.object, projected_key.object, projected_value.object, bias.object, sink.object, relative_bias.object,
                        gradients ? nb::object(parameters(nb::cast(std::move(gradients)))) : nb::none());
}

nb::object saved_map(const Saved& saved, nb::handle like, nb::handle value, nb::handle num_threads) {
  const MapValue map_value = read_map_value(value);
  std::optional<LimitedThreads> threads = threads_of(num_threads, saved);
  SdpaOptions sdpa = saved.saved.sdpa;
  if (threads) sdpa.executor = &*threads;
  const Shape shape = nb::cast<const Layer&>(saved.layer).layer.maps_shape(saved.input);
  const Result out("out", nb::none(), true, like, shape, saved.input.query.dtype());
  without_gil([&] { attention_map(saved.saved.maps(), out.view(), sdpa, map_value); });
  return out.object;
}

// A copy of lse: a PyTorch tensor if `like`, the query, is one, else a NumPy array.
nb::object saved_lse(const Saved& saved, nb::handle like) { return copied("lse", saved.saved.lse, like); }

}  // namespace

nn::MultiHeadAttentionConfig read_config(const nb::dict& given) {
  nn::MultiHeadAttentionConfig config{.seed = 0};
  visit_config(config, [&](const char* name, auto& field) {
    const nb::object value = given.get(name, nb::none());
    if (value.is_none()) return;
    read_field(name, value, field);
  });
  return config;
}

void bind_layer(nb::module_& m) {
  nb::class_<Saved> saved(m, "Saved");
  nb::class_<Layer> layer(m, "Layer");  // both classes must be declared before functions whose signatures mention them
  saved.def("backward", &backward, any("d_out"), any("inputs"), any("parameters"), any("d_bias"), any("num_threads"))
      .def("map", &saved_map, nb::arg("like"), any("value"), any("num_threads"))
      .def("lse", &saved_lse, nb::arg("like"));

  layer
      .def(
          "__init__", [](Layer* self, const ByName& config) { new (self) Layer{nn::MultiHeadAttention(read_config(config))}; }, nb::arg("config"))
      .def_prop_ro("config", &config_dict)
      .def_prop_ro("parameters", &parameters)
      .def_prop_ro("bits", &bits)
      .def("frozen", [](const Layer& self) { return std::make_unique<Layer>(Layer{self.layer, self.causal, self.rotary_of, Workspace(Parameters::constant)}); })
      .def_rw("causal", &Layer::causal)
      .def_rw("rotary_of", &Layer::rotary_of)
      .def_prop_ro("is_frozen", &Layer::frozen)
      .def("forward", &forward, any("query"), any("key"), any("value"), any("out"), any("options"))
      .def("evaluate", &evaluate, any("query"), any("key"), any("value"), any("out"), any("options"));
}

}  // namespace polyhead::python
