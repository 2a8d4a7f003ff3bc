#include "layer.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <cmath>
#include <memory>

#include "bind.h"
#include "gil.h"

namespace polyhead::python {
namespace {

// Keeps alive the arrays that a pass reads.
struct Pass {
  LayerKeywords keywords;
  Array query, key, value;
};

// The activations saved by a forward pass. Keeps the layer alive, because their views point into it.
struct Saved : Pass {
  nn::MultiHeadAttention::Saved saved;
  nb::object layer;
};

constexpr Choices<nn::GlobalQuery, 3> kGlobalQueries{
    {{"off", nn::GlobalQuery::off}, {"mean", nn::GlobalQuery::mean}, {"masked_mean", nn::GlobalQuery::masked_mean}}};

// Calls f(name, member) for every field of a configuration: the list that the constructor and `config` share.
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
  f("dropout", c.dropout);
  f("scale", c.scale);
  f("softcap", c.softcap);
  f("empty_rows", c.empty_rows);
  f("dtype", c.dtype);
  f("seed", c.seed);
}

void read_field(const char* name, nb::handle given, bool& field) { field = read_flag(given, name); }
void read_field(const char* name, nb::handle given, nn::OutputProjection& field) { field = read_flag(given, name) ? nn::OutputProjection::linear : nn::OutputProjection::none; }
void read_field(const char* name, nb::handle given, nn::Gate& field) { field = read_flag(given, name) ? nn::Gate::sigmoid : nn::Gate::none; }
void read_field(const char* name, nb::handle given, nn::GlobalQuery& field) { field = choice(name, read_word(given, name), kGlobalQueries); }
void read_field(const char* name, nb::handle given, EmptyRows& field) { field = choice(name, read_word(given, name), kEmptyRows); }
void read_field(const char* name, nb::handle given, DType& field) { field = dtype_named(read_word(given, name)); }
void read_field(const char* name, nb::handle given, double& field) { field = read_number(given, name); }
void read_field(const char* name, nb::handle given, std::optional<double>& field) { field = read_number(given, name); }
void read_field(const char* name, nb::handle given, int& field) { field = static_cast<int>(read_integer(given, name, -kMaxRank, kMaxRank)); }
// 0 is refused: the library takes a width of 0 for its default, for which Python has None.
void read_field(const char* name, nb::handle given, std::int64_t& field) { field = read_integer(given, name, 1, std::int64_t{1} << 40); }
void read_field(const char*, nb::handle given, std::uint64_t& field) { field = read_seed(given); }

nb::object write_field(nn::OutputProjection field) { return nb::bool_(field == nn::OutputProjection::linear); }
nb::object write_field(nn::Gate field) { return nb::bool_(field == nn::Gate::sigmoid); }
nb::object write_field(nn::GlobalQuery field) { return nb::cast(word_of(kGlobalQueries, field)); }
nb::object write_field(EmptyRows field) { return nb::cast(word_of(kEmptyRows, field)); }
nb::object write_field(DType field) { return nb::cast(std::string(info(field).name)); }
template <class T>
nb::object write_field(const T& field) { return nb::cast(field); }

// Runs a forward pass. Returns the output: `out`, or a new array if `out` is None.
nb::object run(const char* function, const Layer& layer, nb::handle query, nb::handle key, nb::handle value, nb::handle out, nb::handle options, Pass& pass,
               nn::MultiHeadAttention::Saved* saved) {
  LayerKeywords& k = pass.keywords;
  read_keywords(function, options, k);
  if (!k.causal && layer.causal) k.causal = Diagonal::bottom_right();
  pass.query = Array::required(query, "query");
  pass.key = Array::input(key, "key");
  pass.value = Array::input(value, "value");
  const nn::AttentionInput input{.query = pass.query.view(), .key = pass.key.view(), .value = pass.value.view()};
  // A workspace for constant parameters refuses gradients of parameters. A frozen layer gives them, so passes with `saved` run without it.
  const nn::AttentionOptions attention{.mask = k.mask(),
                                       .bias = k.bias.view(),
                                       .mode = k.training ? nn::Mode::training : nn::Mode::evaluation,
                                       .dropout_seed = k.seed,
                                       .dropout_keep = k.dropout_keep.view(),
                                       .backend = k.backend,
                                       .executor = k.executor(),
                                       .workspace = saved && layer.frozen() ? nullptr : &layer.workspace};
  const nb::object object = out.is_none() ? empty_array(query, layer.layer.output_shape(input), input.query.dtype()) : nb::borrow(out);
  const Array array = Array::output(object, "out");
  without_gil([&] { layer.layer.forward(input, array.view(), attention, saved); });
  return object;
}

Tuple<nb::any, Saved> forward(nb::handle self, nb::handle query, nb::handle key, nb::handle value, nb::handle out, nb::handle options) {
  auto saved = std::make_unique<Saved>();
  saved->layer = nb::borrow(self);
  const nb::object object = run("MultiHeadAttention.forward", nb::cast<const Layer&>(self), query, key, value, out, options, *saved, &saved->saved);
  return nb::make_tuple(object, std::move(saved));
}

nb::object evaluate(const Layer& layer, nb::handle query, nb::handle key, nb::handle value, nb::handle out, nb::handle options) {
  Pass pass;
  return run("MultiHeadAttention.__call__", layer, query, key, value, out, options, pass, nullptr);
}

// The threads of a backward pass or map: those of the forward pass if `given` is None.
std::optional<LimitedThreads> threads_of(nb::handle given, const Saved& saved) {
  return given.is_none() ? saved.keywords.threads : read_num_threads(given);
}

// Returns (d_query, d_key, d_value, d_bias, gradients of the parameters as a Layer). A gradient is None if it is not wanted, or if the
// forward pass did not get the input.
Tuple<nb::any, nb::any, nb::any, nb::any, std::optional<Layer>> backward(const Saved& saved, nb::handle d_out, nb::handle inputs, nb::handle parameters_too,
                                                                         nb::handle d_bias_given, nb::handle num_threads) {
  const bool want_inputs = read_flag(inputs, "inputs"), want_parameters = read_flag(parameters_too, "parameters");
  std::optional<LimitedThreads> threads = threads_of(num_threads, saved);
  const Layer& layer = nb::cast<const Layer&>(saved.layer);
  const Array d_out_array = Array::required(d_out, "d_out");
  const auto gradient = [&](const Array& of) { return want_inputs ? empty_like(d_out, of) : nb::none(); };
  const nb::object d_query = gradient(saved.query), d_key = gradient(saved.key), d_value = gradient(saved.value),
                   d_bias = d_bias_given.is_none() ? gradient(saved.keywords.bias) : nb::borrow(d_bias_given);
  const Array query = Array::output(d_query, "d_query"), key = Array::output(d_key, "d_key"), value = Array::output(d_value, "d_value"),
              bias = Array::output(d_bias, "d_bias");
  auto parameters = want_parameters ? std::make_unique<Layer>() : nullptr;
  without_gil([&] {
    if (parameters) parameters->layer = nn::zeros_like(layer.layer);
    layer.layer.backward(saved.saved, d_out_array.view(),
                         {.query = query.view(), .key = key.view(), .value = value.view(), .bias = bias.view(),
                          .parameters = parameters ? &parameters->layer : nullptr},
                         {.executor = threads ? &*threads : nullptr, .workspace = layer.frozen() ? nullptr : &layer.workspace});
  });
  return nb::make_tuple(d_query, d_key, d_value, d_bias, parameters ? nb::cast(std::move(parameters)) : nb::none());
}

nb::object saved_map(const Saved& saved, nb::handle like, nb::handle value, nb::handle num_threads) {
  const MapValue map_value = read_map_value(value);
  std::optional<LimitedThreads> threads = threads_of(num_threads, saved);
  SdpaOptions sdpa = saved.saved.sdpa;
  if (threads) sdpa.executor = &*threads;
  const nb::object object = empty_array(like, nb::cast<const Layer&>(saved.layer).layer.maps_shape(saved.saved.input), saved.query.view().dtype());
  const Array array = Array::output(object, "out");
  without_gil([&] { attention_map(saved.saved.maps(), array.view(), sdpa, map_value); });
  return object;
}

// A copy of lse: a PyTorch tensor if `like`, the query, is one, else a NumPy array.
nb::object saved_lse(const Saved& saved, nb::handle like) {
  const Tensor& lse = saved.saved.lse;
  const nb::object object = empty_array(like, lse.shape(), lse.dtype());
  copy(lse.view(), Array::output(object, "lse").view());
  return object;
}

ByName parameters(nb::handle self) {
  nb::dict result;
  Layer& layer = nb::cast<Layer&>(self);
  layer.layer.visit([&](const std::string& name, Tensor& tensor) {
    result[name.c_str()] = layer.frozen() ? numpy_view(std::as_const(tensor).view(), self) : numpy_view(tensor.view(), self);
  });
  return result;
}

}  // namespace

nn::MultiHeadAttentionConfig read_config(const nb::dict& given) {
  nn::MultiHeadAttentionConfig config;
  visit_config(config, [&](const char* name, auto& field) {
    const nb::object value = given.get(name, nb::none());
    if (value.is_none()) return;
    read_field(name, value, field);
  });
  if (config.axis == -1) throw nb::value_error("axis is -1, the width's; attention runs along one of the others");
  if (config.scale && !std::isfinite(*config.scale)) throw nb::value_error("scale is not finite");
  if (!(config.softcap >= 0) || std::isinf(config.softcap)) throw nb::value_error("softcap must be finite and at least 0");
  return config;
}

nb::dict config_dict(const nn::MultiHeadAttentionConfig& config) {
  nb::dict result;
  visit_config(config, [&](const char* name, const auto& field) { result[name] = write_field(field); });
  return result;
}

void bind_layer(nb::module_& m) {
  nb::class_<Saved> saved(m, "Saved");
  nb::class_<Layer> layer(m, "Layer");  // declare both classes before functions whose signatures name them
  saved.def("backward", &backward, any("d_out"), any("inputs"), any("parameters"), any("d_bias"), any("num_threads"))
      .def("map", &saved_map, nb::arg("like"), any("value"), any("num_threads"))
      .def("lse", &saved_lse, nb::arg("like"));

  layer
      .def(
          "__init__", [](Layer* self, const ByName& config) { new (self) Layer{nn::MultiHeadAttention(read_config(config))}; }, nb::arg("config"))
      .def_prop_ro("config", [](const Layer& self) -> ByName { return config_dict(self.layer.config); })
      .def_prop_ro("parameters", &parameters)
      .def("frozen", [](const Layer& self) { return std::make_unique<Layer>(Layer{self.layer, self.causal, Workspace(Parameters::constant)}); })
      .def_rw("causal", &Layer::causal)
      .def_prop_ro("is_frozen", &Layer::frozen)
      .def("forward", &forward, any("query"), any("key"), any("value"), any("out"), any("options"))
      .def("evaluate", &evaluate, any("query"), any("key"), any("value"), any("out"), any("options"));
}

}  // namespace polyhead::python
