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

// Keyword arguments of a layer's forward pass, and what keeps their arrays alive.
struct LayerOptions {
  MaskArrays arrays;
  Array bias, dropout_keep;
  nn::AttentionOptions attention;  // without the executor
  std::optional<int> num_threads;
};

// What a pass reads, and who computes it.
struct Pass {
  Array query, key, value;
  std::optional<LimitedThreads> threads;
};

// A forward pass and everything it points into.
struct Saved : Pass {
  nn::MultiHeadAttention::Saved saved;
  nb::object layer, options;
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
// A width of 0 would mean its default, which None says here.
void read_field(const char* name, nb::handle given, std::int64_t& field) { field = read_integer(given, name, 1, std::int64_t{1} << 40); }
void read_field(const char*, nb::handle given, std::uint64_t& field) { field = read_seed(given); }

nb::object write_field(nn::OutputProjection field) { return nb::bool_(field == nn::OutputProjection::linear); }
nb::object write_field(nn::Gate field) { return nb::bool_(field == nn::Gate::sigmoid); }
nb::object write_field(nn::GlobalQuery field) { return nb::cast(word_of(kGlobalQueries, field)); }
nb::object write_field(EmptyRows field) { return nb::cast(word_of(kEmptyRows, field)); }
nb::object write_field(DType field) { return nb::cast(std::string(info(field).name)); }
template <class T>
nb::object write_field(const T& field) { return nb::cast(field); }

void run(const Layer& layer, nb::handle query, nb::handle key, nb::handle value, nb::handle out, const LayerOptions& options, Pass& pass,
         nn::MultiHeadAttention::Saved* saved) {
  pass.query = Array::required(query, "query");
  pass.key = Array::input(key, "key");
  pass.value = Array::input(value, "value");
  nn::AttentionOptions attention = options.attention;
  if (options.num_threads) attention.executor = &pass.threads.emplace(*options.num_threads);
  // Parameters of a frozen layer cannot change, so its gradients may be computed; they need a pass without a workspace of constant parameters.
  if (!saved || !layer.frozen()) attention.workspace = &layer.workspace;
  const Array out_array = Array::output(out, "out");
  const ReleasedGil released;
  layer.layer.forward({.query = pass.query.view(), .key = pass.key.view(), .value = pass.value.view()}, out_array.view(), attention, saved);
}

std::unique_ptr<Saved> forward(nb::handle self, nb::handle query, nb::handle key, nb::handle value, nb::handle out, nb::handle options) {
  const Layer& layer = nb::cast<const Layer&>(self);
  auto saved = std::make_unique<Saved>();
  saved->layer = nb::borrow(self);
  saved->options = nb::borrow(options);
  run(layer, query, key, value, out, nb::cast<const LayerOptions&>(options), *saved, &saved->saved);
  return saved;
}

void evaluate(const Layer& layer, nb::handle query, nb::handle key, nb::handle value, nb::handle out, const LayerOptions& options) {
  Pass pass;
  run(layer, query, key, value, out, options, pass, nullptr);
}

nb::object empty_output(const Layer& layer, nb::handle query, nb::handle key, nb::handle value) {
  const Array q = Array::required(query, "query"), k = Array::input(key, "key"), v = Array::input(value, "value");
  return empty_array(query, layer.layer.output_shape({.query = q.view(), .key = k.view(), .value = v.view()}), q.view().dtype());
}

// (d_query, d_key, d_value, d_bias, parameters as a Layer): None where not wanted or not given to the forward pass.
Tuple<nb::any, nb::any, nb::any, nb::any, std::optional<Layer>> backward(const Saved& saved, nb::handle d_out, nb::handle inputs, nb::handle parameters_too,
                                                                         nb::handle d_bias_given) {
  const bool want_inputs = read_flag(inputs, "inputs"), want_parameters = read_flag(parameters_too, "parameters");
  const Layer& layer = nb::cast<const Layer&>(saved.layer);
  const LayerOptions& options = nb::cast<const LayerOptions&>(saved.options);
  const Array d_out_array = Array::required(d_out, "d_out");
  const auto gradient = [&](bool wanted, const Array& of) -> nb::object {
    return wanted && of ? empty_array(d_out, of.view().shape(), of.view().dtype()) : nb::none();
  };
  const nb::object d_query = gradient(want_inputs, saved.query), d_key = gradient(want_inputs, saved.key), d_value = gradient(want_inputs, saved.value),
                   d_bias = d_bias_given.is_none() ? gradient(want_inputs, options.bias) : nb::borrow(d_bias_given);
  const Array query = Array::output(d_query, "d_query"), key = Array::output(d_key, "d_key"), value = Array::output(d_value, "d_value"),
              bias = Array::output(d_bias, "d_bias");
  auto parameters = want_parameters ? std::make_unique<Layer>() : nullptr;
  {
    const ReleasedGil released;
    if (parameters) parameters->layer = nn::zeros_like(layer.layer);
    layer.layer.backward(saved.saved, d_out_array.view(),
                         {.query = query.view(), .key = key.view(), .value = value.view(), .bias = bias.view(),
                          .parameters = parameters ? &parameters->layer : nullptr},
                         {.workspace = layer.frozen() ? nullptr : &layer.workspace});
  }
  return nb::make_tuple(d_query, d_key, d_value, d_bias, parameters ? nb::cast(std::move(parameters)) : nb::none());
}

nb::object saved_map(const Saved& saved, nb::handle like, nb::handle value) {
  const MapValue map_value = choice("value", read_word(value, "value"), kMapValues);
  const Shape shape = nb::cast<const Layer&>(saved.layer).layer.maps_shape(saved.saved.input);
  const nb::object object = empty_array(like, shape, saved.query.view().dtype());
  const Array array = Array::output(object, "out");
  {
    const ReleasedGil released;
    attention_map(saved.saved.maps(), array.view(), saved.saved.sdpa, map_value);
  }
  return object;
}

// A copy: the caller's kind, and of the caller's own.
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
  nb::class_<LayerOptions>(m, "LayerOptions")
      .def(
          "__init__",
          [](LayerOptions* self, nb::handle attend, nb::handle block, nb::handle attend_keys, nb::handle block_keys, nb::handle causal, nb::handle window,
             nb::handle key_lengths, nb::handle bias, nb::handle training_flag, nb::handle seed, nb::handle dropout_keep, nb::handle backend,
             nb::handle num_threads) {
            const bool training = read_flag(training_flag, "training");
            LayerOptions o;
            o.arrays.attend = Array::input(attend, "attend");
            o.arrays.block = Array::input(block, "block");
            o.arrays.attend_keys = Array::input(attend_keys, "attend_keys");
            o.arrays.block_keys = Array::input(block_keys, "block_keys");
            o.arrays.key_lengths = Array::input(key_lengths, "key_lengths");
            o.bias = Array::input(bias, "bias");
            o.dropout_keep = Array::input(dropout_keep, "dropout_keep");
            o.attention = {.mask = o.arrays.mask(read_diagonal(causal, "causal"), read_window(window)),
                           .bias = o.bias.view(),
                           .mode = training ? nn::Mode::training : nn::Mode::evaluation,
                           .dropout_seed = seed.is_none() ? std::nullopt : std::optional(read_seed(seed)),
                           .dropout_keep = o.dropout_keep.view(),
                           .backend = read_backend(backend)};
            o.num_threads = read_num_threads(num_threads);
            new (self) LayerOptions(std::move(o));
          },
          nb::arg("attend").none() = nb::none(), nb::arg("block").none() = nb::none(), nb::arg("attend_keys").none() = nb::none(),
          nb::arg("block_keys").none() = nb::none(), nb::arg("causal").none() = nb::none(), nb::arg("window").none() = nb::none(),
          nb::arg("key_lengths").none() = nb::none(), nb::arg("bias").none() = nb::none(),
          nb::arg("training").none() = false, nb::arg("seed").none() = nb::none(), nb::arg("dropout_keep").none() = nb::none(),
          nb::arg("backend").none() = nb::none(), nb::arg("num_threads").none() = nb::none());

  nb::class_<Saved> saved(m, "Saved");
  nb::class_<Layer> layer(m, "Layer");  // both before the functions whose types name them
  saved.def("backward", &backward, nb::arg("d_out").none(), nb::arg("inputs").none(), nb::arg("parameters").none(), nb::arg("d_bias").none())
      .def("map", &saved_map, nb::arg("like"), nb::arg("value").none())
      .def("lse", &saved_lse, nb::arg("like"));

  layer
      .def(
          "__init__", [](Layer* self, const ByName& config) { new (self) Layer{nn::MultiHeadAttention(read_config(config))}; }, nb::arg("config"))
      .def_prop_ro("config", [](const Layer& self) -> ByName { return config_dict(self.layer.config); })
      .def_prop_ro("parameters", &parameters)
      .def("frozen", [](const Layer& self) { return std::make_unique<Layer>(Layer{self.layer, Workspace(Parameters::constant)}); })
      .def_prop_ro("is_frozen", &Layer::frozen)
      .def("empty_output", &empty_output, nb::arg("query").none(), nb::arg("key").none(), nb::arg("value").none())
      .def("forward", &forward, nb::arg("query").none(), nb::arg("key").none(), nb::arg("value").none(), nb::arg("out").none(), nb::arg("options"))
      .def("evaluate", &evaluate, nb::arg("query").none(), nb::arg("key").none(), nb::arg("value").none(), nb::arg("out").none(), nb::arg("options"));
}

}  // namespace polyhead::python
