// Passes of the layers of polyhead.torch. The caller gives the parameters with each pass, because an optimizer may change them between two passes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>

#include <array>
#include <memory>

#include "bind.h"
#include "gil.h"
#include "layer.h"

namespace polyhead::python {
namespace {

// The order of the tuple `parameters`: weight and bias of each projection, then bias_k and bias_v; None for a parameter that the layer does not have. If the
// weight (or bias) of k is None, the weight (or bias) of q has the rows of q, then those of k, then those of v.
constexpr std::size_t kLinears = 5, kParameters = 2 * kLinears + 2;
constexpr const char* kParameterNames[kParameters] = {"q.weight",      "q.bias",      "k.weight",    "k.bias",    "v.weight", "v.bias",
                                                      "output.weight", "output.bias", "gate.weight", "gate.bias", "bias_k",   "bias_v"};

std::array<nn::Linear*, kLinears> linears(nn::MultiHeadAttention& layer) { return {&layer.q, &layer.k, &layer.v, &layer.output, &layer.gate}; }

// Memory that all passes reuse. The workspace is never destroyed, because tensors of torch may return memory to it until the process ends.
const Workspace& workspace() {
  static const Workspace* const kWorkspace = new Workspace();
  return *kWorkspace;
}

Tensor on(TensorView view) { return view ? Tensor::share(view, nullptr) : Tensor(); }

// A layer without its parameters.
struct LayerForm {
  nn::MultiHeadAttentionConfig config;

  // Makes a layer that uses the memory of the views. The views are in the order of kParameterNames.
  nn::MultiHeadAttention on_memory(const std::array<TensorView, kParameters>& views) const {
    nn::MultiHeadAttention layer;
    const auto members = linears(layer);
    for (std::size_t i = 0; i < kLinears; ++i) members[i]->weight = on(views[2 * i]), members[i]->bias = on(views[2 * i + 1]);
    const std::int64_t q = config.heads * config.head_width, k = config.kv_heads * config.head_width, v = config.kv_heads * config.value_head_width;
    const auto split = [&](const char* name, Tensor nn::Linear::*member, TensorView all) {
      if (!all || layer.k.*member || (all.rank() > 0 && all.extent(0) == q)) return;
      if (all.rank() == 0 || all.extent(0) != q + k + v) {
        throw nb::value_error(cat("MultiHeadAttention: in_proj_", name, " is ", all.shape(), "; it must have ", q + k + v, " rows").c_str());
      }
      layer.q.*member = on(all.slice(0, 0, q)), layer.k.*member = on(all.slice(0, q, q + k)), layer.v.*member = on(all.slice(0, q + k, q + k + v));
    };
    split("weight", &nn::Linear::weight, views[0]), split("bias", &nn::Linear::bias, views[1]);
    // PyTorch's modules may have any combination of these biases, and AlphaFold 3 has only the bias of q. So a projection has a bias if its bias is given,
    // whatever the configuration says.
    nn::Linear* const with_setting[] = {&layer.q, &layer.k, &layer.v, &layer.output};
    std::array<Tensor, 4> biases;
    for (std::size_t i = 0; i < biases.size(); ++i) biases[i] = std::move(with_setting[i]->bias);
    nn::MultiHeadAttentionConfig without = config;
    without.bias = without.output_bias = false;
    layer = nn::make_attention(without, std::move(layer.q), std::move(layer.k), std::move(layer.v), std::move(layer.output), std::move(layer.gate), on(views[10]),
                               on(views[11]));
    for (std::size_t i = 0; i < biases.size(); ++i) {
      if (!biases[i]) continue;
      const Tensor& weight = with_setting[i]->weight;
      const auto refuse = [&](const auto& given, const auto&... allowed) {
        throw nb::value_error(cat("MultiHeadAttention.", kParameterNames[2 * i], ": the bias is ", given, "; it must be ", allowed...).c_str());
      };
      if (!weight) refuse(to_string(biases[i].shape()), "absent, as the weight is");
      if (biases[i].dtype() != weight.dtype()) refuse(info(biases[i].dtype()).name, info(weight.dtype()).name);
      const Shape shape{weight.extent(0)};
      if (biases[i].shape() != shape) refuse(to_string(biases[i].shape()), to_string(shape));
      with_setting[i]->bias = std::move(biases[i]);
    }
    layer.config.bias = static_cast<bool>(layer.q.bias), layer.config.output_bias = static_cast<bool>(layer.output.bias);
    return layer;
  }
};

// The arguments of one pass.
struct Pass : LayerCall {
  Pass(const LayerForm& form, const char* function, nb::handle query, nb::handle key, nb::handle value, nb::handle parameters, nb::handle keywords)
      : LayerCall(function, keywords) {
    arrays.reserve(arrays.size() + 3 + kParameters);
    input.query = required(query, "query");
    input.key = keep(Array::input(key, "key"));
    input.value = keep(Array::input(value, "value"));
    options.workspace = &workspace();
    const nb::tuple given = nb::cast<nb::tuple>(parameters);
    std::array<TensorView, kParameters> views;
    for (std::size_t i = 0; i < kParameters; ++i) {
      arrays.push_back(Array::input(given[i], kParameterNames[i]));
      views[i] = arrays.back().view();
    }
    layer = form.on_memory(views);
  }
  nn::MultiHeadAttention layer;
};

// A tensor of torch that shares the memory of `tensor` and keeps that memory alive.
nb::object torch_tensor(const Tensor& tensor) {
  const nb::capsule owner(new std::shared_ptr<void>(tensor.owner()), [](void* held) noexcept { delete static_cast<std::shared_ptr<void>*>(held); });
  return torch_view(tensor, owner);
}

// The activations as a tuple of tensors; None for activations that the layer does not use.
nb::object activation_tensors(nn::MultiHeadAttention::Saved& saved) {
  nb::list tensors;
  saved.visit([&](const char*, const Tensor& tensor) { tensors.append(tensor ? torch_tensor(tensor) : nb::none()); });
  return nb::tuple(tensors);
}

// Returns (output, attention map or None, activations or None). map: which map to return, "probability" or "dropped"; None: no map.
Tuple<nb::any, nb::any, nb::any> forward(const LayerForm& form, nb::handle query, nb::handle key, nb::handle value, nb::handle parameters,
                                         nb::handle keywords, bool save, nb::handle map_value) {
  Pass pass(form, "MultiHeadAttention.forward", query, key, value, parameters, keywords);
  const bool want_map = !map_value.is_none();
  const Result out("out", nb::none(), true, query, pass.layer.output_shape(pass.input), form.config.dtype);
  const Result map("map", nb::none(), want_map, query, want_map ? pass.layer.maps_shape(pass.input) : Shape(), form.config.dtype);
  const MapValue value_of_map = want_map ? read_map_value(map_value) : MapValue::probability;
  nn::MultiHeadAttention::Saved saved;
  without_gil([&] {
    const bool of_this_pass = value_of_map == MapValue::probability;  // the forward pass has the attention weights before dropout
    pass.layer.forward(pass.input, out.view(), pass.options, save || want_map ? &saved : nullptr, of_this_pass ? map.view() : TensorView());
    if (!want_map || of_this_pass) return;
    SdpaOptions sdpa = saved.sdpa;
    sdpa.executor = pass.options.executor;
    attention_map(saved.maps(), map.view(), sdpa, value_of_map);
  });
  return nb::make_tuple(out.object, map.object, save ? activation_tensors(saved) : nb::none());
}

// Returns (d_query, d_key, d_value, d_bias, gradients of the parameters). wanted: which of the first four gradients to compute; the others are None.
Tuple<nb::any, nb::any, nb::any, nb::any, nb::any> backward(const LayerForm& form, nb::handle d_out_given, nb::handle query, nb::handle key,
                                                            nb::handle value, nb::handle parameters, nb::handle keywords, nb::handle activations,
                                                            nb::handle wanted, bool parameters_too) {
  Pass pass(form, "MultiHeadAttention.backward", query, key, value, parameters, keywords);
  const ConstTensorView d_out = pass.required(d_out_given, "d_out");
  nn::MultiHeadAttention::Saved saved;
  std::vector<Array> kept;
  kept.reserve(7);
  const nb::tuple tensors = nb::cast<nb::tuple>(activations), want = nb::cast<nb::tuple>(wanted);
  std::size_t at = 0;
  saved.visit([&](const char* name, Tensor& tensor) { tensor = on(kept.emplace_back(Array::input(tensors[at++], name)).view()); });
  pass.layer.restore(pass.input, pass.options, saved);

  const auto gradient = [&](const char* name, std::size_t i, ConstTensorView of) {
    return Result(name, nb::none(), nb::cast<bool>(want[i]), query, of);
  };
  const Result d_query = gradient("d_query", 0, pass.input.query), d_key = gradient("d_key", 1, pass.input.key),
               d_value = gradient("d_value", 2, pass.input.value), d_bias = gradient("d_bias", 3, pass.options.bias);
  const nb::tuple given = nb::cast<nb::tuple>(parameters);
  nb::list d_parameters;
  std::vector<Result> results;
  nn::MultiHeadAttention gradients;
  if (parameters_too) {
    results.reserve(kParameters);
    std::array<TensorView, kParameters> views;
    for (std::size_t i = 0; i < kParameters; ++i) {
      const Array parameter = Array::input(given[i], kParameterNames[i]);
      const Result& result = results.emplace_back(kParameterNames[i], nb::none(), true, query, parameter.view());
      views[i] = result.view();
      d_parameters.append(result.object);
    }
    gradients = form.on_memory(views);
  }
  without_gil([&] {
    pass.layer.backward(saved, d_out,
                        {.query = d_query.view(), .key = d_key.view(), .value = d_value.view(), .bias = d_bias.view(),
                         .parameters = parameters_too ? &gradients : nullptr},
                        {.executor = pass.options.executor, .workspace = &workspace()});
  });
  return nb::make_tuple(d_query.object, d_key.object, d_value.object, d_bias.object, parameters_too ? nb::object(nb::tuple(d_parameters)) : nb::none());
}

}  // namespace

void bind_layer_pass(nb::module_& m) {
  nb::class_<LayerForm>(m, "LayerForm")
      .def("__init__", [](LayerForm* self, const ByName& config) { new (self) LayerForm{nn::completed(read_config(config))}; }, nb::arg("config"))
      .def("forward", &forward, any("query"), any("key"), any("value"), any("parameters"), any("options"), nb::arg("save"), any("map"))
      .def("backward", &backward, any("d_out"), any("query"), any("key"), any("value"), any("parameters"), any("options"), any("activations"),
           any("wanted"), nb::arg("parameters_too"));
}

}  // namespace polyhead::python
