#include "polyhead/maps.h"
#include "polyhead/nn/value_norms.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <numeric>

#include "bind.h"
#include "core/index.h"
#include "gil.h"
#include "options.h"

namespace polyhead::python {
namespace {

// Wraps the caller's progress function. The wrapper runs on the caller's thread, and takes the GIL to call the function. An exception of the function ends the
// operation.
std::function<void(std::int64_t, std::int64_t)> read_progress(nb::handle given) {
  if (given.is_none()) return {};
  if (PyCallable_Check(given.ptr()) == 0) throw nb::type_error(cat("progress is ", kind_of(given), "; it must be callable as progress(done, total)").c_str());
  return [given](std::int64_t done, std::int64_t total) {
    const TakenGil taken;
    given(done, total);
  };
}

// The inputs and options of one call.
struct MapsCall : SdpaCall {
  nb::handle like;
  MapsInput input;
  MapsCall(const char* function, nb::handle q, nb::handle k, nb::handle options, nb::handle k_scale, nb::handle progress = nb::none())
      : SdpaCall(function, options), like(q), input{.q = required(q, "q"), .k = required(k, "k"), .k_scale = keep(Array::input(k_scale, "k_scale"))} {
    // Check the ranks here, because the shapes of the results are made from the last dimensions of q and k.
    if (input.q.rank() < 3) throw nb::value_error(cat("q is ", input.q.shape(), "; it must be [*,N,T,H]").c_str());
    if (input.k.rank() < 3) throw nb::value_error(cat("k is ", input.k.shape(), "; it must be [*,K,S,H]").c_str());
    input.progress = read_progress(progress);
  }
  std::int64_t queries() const { return input.q.extent(-2); }
  std::int64_t keys() const { return input.k.extent(-2); }

  // A result with the extents [*,N] of q followed by `rest`: `given`, or a new array if `given` is None. A new array has the dtype `dtype` if there is one,
  // else that of q, or float32 if q is not floating.
  Result result(const char* name, std::initializer_list<std::int64_t> rest, nb::handle given = nb::none(),
                std::optional<DType> dtype = {}) const {
    return {name, given, true, like, appended(input.q.shape().first(input.q.rank() - 2), rest), dtype.value_or(is_floating(input.q.dtype()) ? input.q.dtype() : DType::f32)};
  }
};

// Reads the indices that the caller chose; None means [0, count).
std::vector<std::int64_t> read_chosen(nb::handle chosen, const char* name, std::int64_t count) {
  if (!chosen.is_none()) return read_integers(chosen, name);
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  return all;
}

// Selects the norms of the chosen keys: [*,N,number of chosen keys]. ValueError unless `norms` is floating and [*,N,S], with a norm for each head and key of
// the call.
Tensor norms_of_keys(const ConstTensorView& norms, const MapsCall& call, const std::vector<std::int64_t>& keys) {
  Shape expected = call.input.q.shape().first(call.input.q.rank() - 1);
  expected[-1] = call.keys();
  if (norms.shape() != expected || !is_floating(norms.dtype()))
    throw nb::value_error(cat("value_norms is ", norms.dtype(), " ", norms.shape(), "; it must be floating and [*,N,S] = ", expected).c_str());
  expected[-1] = std::ssize(keys);
  Tensor chosen(norms.dtype(), expected);
  for (std::int64_t i = 0; i < std::ssize(keys); ++i) {
    const std::int64_t key = keys[static_cast<std::size_t>(i)];
    if (key >= 0 && key < call.keys()) copy(norms.select(-1, key), chosen.view().select(-1, i));  // attention_map_part() raises the error for other keys
  }
  return chosen;
}

// Computes the norms [*,N,S] of the values after each head's slice of the output projection. output_weight: [E,N*V], or None for a layer without an output
// projection.
nb::object value_norms(nb::handle v_given, nb::handle weight_given, nb::handle num_threads) {
  const Array v = Array::required(v_given, "v"), weight = Array::input(weight_given, "output_weight");
  if (v.view().rank() < 3) throw nb::value_error(cat("v is ", v.view().shape(), "; it must be [*,K,S,V]").c_str());
  if (!is_floating(v.view().dtype())) throw nb::value_error(cat("v is ", v.view().dtype(), "; it must be floating").c_str());
  const std::int64_t width = v.view().extent(-1);
  Shape shape = v.view().shape().first(v.view().rank() - 1);
  nn::Linear output;
  if (const TensorView& given = weight.view()) {
    if (given.rank() != 2 || !is_floating(given.dtype()) || width == 0 || given.extent(1) % width != 0 || shape[-2] == 0 || given.extent(1) / width % shape[-2] != 0)
      throw nb::value_error(cat("output_weight is ", given.dtype(), " ", given.shape(), " and v ", v.view().shape(), " [*,K,S,V]; output_weight must be floating and [E,N*V], with N a multiple of K").c_str());
    output.weight = Tensor::copy_of(given);
    shape[-2] = given.extent(1) / width;
  }
  std::optional<LimitedThreads> threads = read_num_threads(num_threads);
  const Result out("out", nb::none(), true, v_given, shape, v.view().dtype());
  without_gil([&] { nn::value_norms(v.view(), output, out.view(), {.executor = threads ? &*threads : nullptr}); });
  return out.object;
}

// Computes the maps of the chosen rows and keys; None means all rows or all keys.
nb::object maps(nb::handle q, nb::handle k, nb::handle chosen_rows, nb::handle chosen_keys, nb::handle options, nb::handle value, nb::handle out_given,
                nb::handle k_scale, nb::handle progress, nb::handle norms_given) {
  const MapsCall call("maps", q, k, options, k_scale, progress);
  const MapValue map_value = read_map_value(value);
  const Array norms = Array::input(norms_given, "value_norms");
  if (norms.view() && map_value != MapValue::probability && map_value != MapValue::dropped)
    throw nb::value_error("value_norms are multiplied by attention weights; value must be 'probability' or 'dropped'");
  const std::vector<std::int64_t> rows = read_chosen(chosen_rows, "rows", call.queries()), keys = read_chosen(chosen_keys, "keys", call.keys());
  const Result out = call.result("out", {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(keys.size())}, out_given);
  const bool some_keys = !chosen_keys.is_none(), some_rows = !chosen_rows.is_none();
  const Tensor factors = norms.view() ? norms_of_keys(norms.view(), call, keys) : Tensor();
  without_gil([&] {
    if (some_keys) attention_map_part(call.input, rows, keys, out.view(), call.sdpa, map_value);
    else if (some_rows) attention_map_rows(call.input, rows, out.view(), call.sdpa, map_value);
    else attention_map(call.input, out.view(), call.sdpa, map_value);
    if (factors) nn::weight_by_norms(factors, out.view());
  });
  return out.object;
}

Tuple<nb::any, nb::any> top_keys(nb::handle q, nb::handle k, nb::handle top_k, nb::handle options, nb::handle k_scale, nb::handle progress) {
  const MapsCall call("maps", q, k, options, k_scale, progress);
  const std::int64_t count = read_integer(top_k, "top_k", 0, call.keys());
  const Result probability = call.result("probability", {call.queries(), count}),
               key = call.result("key", {call.queries(), count}, nb::none(), DType::i64);
  without_gil([&] { attention_top_keys(call.input, probability.view(), key.view(), call.sdpa); });
  return nb::make_tuple(probability.object, key.object);
}

ByName head_statistics(nb::handle q, nb::handle k, nb::handle options, nb::handle k_scale, nb::handle progress) {
  const MapsCall call("head_statistics", q, k, options, k_scale, progress);
  HeadStatistics views;
  const std::pair<const char*, TensorView*> fields[] = {{"entropy", &views.entropy}, {"largest", &views.largest}, {"distance", &views.distance},
                                                        {"first_key", &views.first_key}, {"previous_key", &views.previous_key},
                                                        {"same_key", &views.same_key}, {"next_key", &views.next_key}};
  nb::dict by_name;
  std::vector<Result> results;
  for (const auto& [name, view] : fields) {
    results.push_back(call.result(name, {}));
    *view = results.back().view();
    by_name[name] = results.back().object;
  }
  without_gil([&] { attention_statistics(call.input, views, call.sdpa); });
  return by_name;
}

nb::object pooled_map(nb::handle q, nb::handle k, nb::handle height_given, nb::handle width_given, nb::handle options,
                      nb::handle k_scale, nb::handle pooling, nb::handle progress) {
  const MapsCall call("pooled_map", q, k, options, k_scale, progress);
  const Pooling how = choice("pooling", read_word(pooling, "pooling"), kPoolings);
  const std::int64_t height = read_integer(height_given, "height", 0, call.queries()),
                     width = read_integer(width_given, "width", 0, call.keys());
  const Result out = call.result("out", {height, width});
  without_gil([&] { attention_pooled_map(call.input, out.view(), call.sdpa, how); });
  return out.object;
}

nb::object key_sums(nb::handle q, nb::handle k, nb::handle options, nb::handle k_scale, nb::handle progress) {
  const MapsCall call("key_sums", q, k, options, k_scale, progress);
  const Result out = call.result("out", {call.keys()});
  without_gil([&] { attention_key_sums(call.input, out.view(), call.sdpa); });
  return out.object;
}

nb::object key_mass(nb::handle q, nb::handle k, nb::handle given, nb::handle options, nb::handle k_scale, nb::handle progress) {
  MapsCall call("key_mass", q, k, options, k_scale, progress);
  const ConstTensorView sets = call.required(given, "key_sets");
  const Result out = call.result("out", {call.queries(), sets.rank() < 2 ? 1 : sets.extent(-2)});
  without_gil([&] { attention_key_mass(call.input, sets, out.view(), call.sdpa); });
  return out.object;
}

nb::object map_windows(nb::handle q, nb::handle k, nb::handle first_given, nb::handle last_given, nb::handle options, nb::handle k_scale, nb::handle progress) {
  const MapsCall call("map_windows", q, k, options, k_scale, progress);
  const std::int64_t most = call.queries() + call.keys(), first = read_integer(first_given, "first", -most, most),
                     last = read_integer(last_given, "last", first, most);
  const Result out = call.result("out", {call.queries(), last - first + 1});
  without_gil([&] { attention_windows(call.input, first, out.view(), call.sdpa); });
  return out.object;
}

nb::object head_divergence(nb::handle q, nb::handle k, nb::handle options, nb::handle k_scale, nb::handle progress) {
  const MapsCall call("head_divergence", q, k, options, k_scale, progress);
  const Result out = call.result("out", {call.input.q.extent(-3)});
  without_gil([&] { attention_divergence(call.input, out.view(), call.sdpa); });
  return out.object;
}

// Attention rollout. layers: (q, k) or (q, k, k_scale) for each layer.
nb::object rollout(nb::handle layers_given, nb::handle chosen_rows, nb::handle residual_given, nb::handle options, nb::handle progress) {
  SdpaCall call("rollout", options);
  const double residual = read_number(residual_given, "residual");
  constexpr const char* kAllowed = "; it must be a list of pairs (q, k)";
  if (!nb::isinstance<nb::list>(layers_given) && !nb::isinstance<nb::tuple>(layers_given)) throw nb::type_error(cat("layers is ", kind_of(layers_given), kAllowed).c_str());
  const nb::sequence list = nb::borrow<nb::sequence>(layers_given);
  const std::size_t count = nb::len(list);
  if (count == 0) throw nb::value_error(cat("layers is empty", kAllowed).c_str());
  std::vector<MapsInput> layers;
  nb::object like;
  for (std::size_t l = 0; l < count; ++l) {
    const nb::object pair = list[l];
    if (!nb::isinstance<nb::tuple>(pair) || nb::len(pair) < 2 || nb::len(pair) > 3) throw nb::type_error(cat("layers[", l, "] is ", kind_of(pair), kAllowed).c_str());
    const nb::object q = pair[0], k = pair[1], k_scale = nb::len(pair) == 3 ? nb::object(pair[2]) : nb::none();
    if (l == 0) like = q;
    layers.push_back({.q = call.required(q, "layers"), .k = call.required(k, "layers"), .k_scale = call.keep(Array::input(k_scale, "layers"))});
  }
  layers.front().progress = read_progress(progress);
  const ConstTensorView& q = layers.front().q;
  if (q.rank() < 3) throw nb::value_error(cat("layers: q is ", q.shape(), "; it must be [*,N,T,H]").c_str());
  const std::vector<std::int64_t> rows = read_chosen(chosen_rows, "rows", q.extent(-2));
  const Shape shape = appended(q.shape().first(q.rank() - 3), {std::ssize(rows), q.extent(-2)});
  const Result out("out", nb::none(), true, like, shape, is_floating(q.dtype()) ? q.dtype() : DType::f32);
  without_gil([&] { attention_rollout(layers, rows, out.view(), call.sdpa, residual); });
  return out.object;
}

}  // namespace

void bind_maps(nb::module_& m) {
  m.def("maps", &maps, any("q"), any("k"), any("rows"), any("keys"), any("options"), any("value"), any("out"), any("k_scale"), any("progress"), any("value_norms"));
  m.def("value_norms", &value_norms, any("v"), any("output_weight"), any("num_threads"));
  m.def("top_keys", &top_keys, any("q"), any("k"), any("top_k"), any("options"), any("k_scale"), any("progress"));
  m.def("head_statistics", &head_statistics, any("q"), any("k"), any("options"), any("k_scale"), any("progress"));
  m.def("pooled_map", &pooled_map, any("q"), any("k"), any("height"), any("width"), any("options"), any("k_scale"), any("pooling"), any("progress"));
  m.def("key_sums", &key_sums, any("q"), any("k"), any("options"), any("k_scale"), any("progress"));
  m.def("key_mass", &key_mass, any("q"), any("k"), any("key_sets"), any("options"), any("k_scale"), any("progress"));
  m.def("map_windows", &map_windows, any("q"), any("k"), any("first"), any("last"), any("options"), any("k_scale"), any("progress"));
  m.def("head_divergence", &head_divergence, any("q"), any("k"), any("options"), any("k_scale"), any("progress"));
  m.def("rollout", &rollout, any("layers"), any("rows"), any("residual"), any("options"), any("progress"));
}

}  // namespace polyhead::python
