#include "polyhead/maps.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "gil.h"
#include "options.h"

namespace polyhead::python {
namespace {

// The inputs and options of one call.
struct MapsCall : SdpaCall {
  nb::handle like;
  MapsInput input;
  MapsCall(const char* function, nb::handle q, nb::handle k, nb::handle options, nb::handle k_scale)
      : SdpaCall(function, options), like(q), input{.q = required(q, "q"), .k = required(k, "k"), .k_scale = keep(Array::input(k_scale, "k_scale"))} {
    // Check the ranks here, because the shapes of the results are made from the last dimensions.
    if (input.q.rank() < 3) throw nb::value_error(text("q is ", to_string(input.q.shape()), "; it must be [*,N,T,H]").c_str());
    if (input.k.rank() < 3) throw nb::value_error(text("k is ", to_string(input.k.shape()), "; it must be [*,K,S,H]").c_str());
  }
  std::int64_t queries() const { return input.q.extent(-2); }
  std::int64_t keys() const { return input.k.extent(-2); }

  // A result with the shape [*,N] followed by `rest`: `given`, else a new array in `dtype` or, without one, that of q.
  Result result(const char* name, std::initializer_list<std::int64_t> rest, nb::handle given = nb::none(),
                std::optional<DType> dtype = {}) const {
    Shape shape = input.q.shape().first(input.q.rank() - 2);
    for (const std::int64_t extent : rest) shape.push_back(extent);
    return {name, given, true, like, shape, dtype.value_or(is_floating(input.q.dtype()) ? input.q.dtype() : DType::f32)};
  }
};

// The maps of the chosen rows; None: of all.
nb::object maps(nb::handle q, nb::handle k, nb::handle chosen, nb::handle options, nb::handle value, nb::handle out_given,
                nb::handle k_scale) {
  const MapsCall call("maps", q, k, options, k_scale);
  const MapValue map_value = read_map_value(value);
  const bool all = chosen.is_none();
  const std::vector<std::int64_t> rows = all ? std::vector<std::int64_t>() : read_integers(chosen, "rows");
  const Result out = call.result("out", {all ? call.queries() : static_cast<std::int64_t>(rows.size()), call.keys()}, out_given);
  without_gil([&] {
    if (all) return attention_map(call.input, out.view(), call.sdpa, map_value);
    attention_map_rows(call.input, rows, out.view(), call.sdpa, map_value);
  });
  return out.object;
}

Tuple<nb::any, nb::any> top_keys(nb::handle q, nb::handle k, nb::handle top_k, nb::handle options, nb::handle k_scale) {
  const MapsCall call("maps", q, k, options, k_scale);
  const std::int64_t count = read_integer(top_k, "top_k", 0, call.keys());
  const Result probability = call.result("probability", {call.queries(), count}),
               key = call.result("key", {call.queries(), count}, nb::none(), DType::i64);
  without_gil([&] { attention_top_keys(call.input, probability.view(), key.view(), call.sdpa); });
  return nb::make_tuple(probability.object, key.object);
}

ByName head_statistics(nb::handle q, nb::handle k, nb::handle options, nb::handle k_scale) {
  const MapsCall call("head_statistics", q, k, options, k_scale);
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
                      nb::handle k_scale) {
  const MapsCall call("pooled_map", q, k, options, k_scale);
  const std::int64_t height = read_integer(height_given, "height", 0, call.queries()),
                     width = read_integer(width_given, "width", 0, call.keys());
  const Result out = call.result("out", {height, width});
  without_gil([&] { attention_pooled_map(call.input, out.view(), call.sdpa); });
  return out.object;
}

}  // namespace

void bind_maps(nb::module_& m) {
  m.def("maps", &maps, any("q"), any("k"), any("rows"), any("options"), any("value"), any("out"), any("k_scale"));
  m.def("top_keys", &top_keys, any("q"), any("k"), any("top_k"), any("options"), any("k_scale"));
  m.def("head_statistics", &head_statistics, any("q"), any("k"), any("options"), any("k_scale"));
  m.def("pooled_map", &pooled_map, any("q"), any("k"), any("height"), any("width"), any("options"), any("k_scale"));
}

}  // namespace polyhead::python
