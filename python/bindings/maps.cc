#include "polyhead/maps.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "gil.h"
#include "options.h"

namespace polyhead::python {
namespace {

// Reads the inputs and options of one call and keeps their arrays alive.
struct MapsCall : SdpaCall {
  Array q, k;
  MapsCall(const char* function, nb::handle q_object, nb::handle k_object, nb::handle options)
      : SdpaCall(function, options), q(Array::required(q_object, "q")), k(Array::required(k_object, "k")) {
    // Check the ranks here, because the shapes of the results are made from the last dimensions.
    if (q.view().rank() < 3) throw nb::value_error(text("q is ", to_string(q.view().shape()), "; it must be [*,N,T,H]").c_str());
    if (k.view().rank() < 3) throw nb::value_error(text("k is ", to_string(k.view().shape()), "; it must be [*,K,S,H]").c_str());
  }
  MapsInput input() const { return {.q = q.view(), .k = k.view()}; }
  std::int64_t queries() const { return q.view().extent(-2); }
  std::int64_t keys() const { return k.view().extent(-2); }

  // A new array with the shape [*,N] followed by `rest`: a PyTorch tensor if `like` is one. Its dtype is `dtype`, else that of q.
  nb::object empty(nb::handle like, std::initializer_list<std::int64_t> rest, std::optional<DType> dtype = {}) const {
    Shape shape = q.view().shape().first(q.view().rank() - 2);
    for (const std::int64_t extent : rest) shape.push_back(extent);
    return empty_array(like, shape, dtype.value_or(is_floating(q.view().dtype()) ? q.view().dtype() : DType::f32));
  }
};

nb::object maps(nb::handle q, nb::handle k, nb::handle options, nb::handle value, nb::handle out) {
  const MapsCall call("maps", q, k, options);
  const MapValue map_value = read_map_value(value);
  const nb::object object = out.is_none() ? call.empty(q, {call.queries(), call.keys()}) : nb::borrow(out);
  const Array array = Array::output(object, "out");
  without_gil([&] { attention_map(call.input(), array.view(), call.sdpa, map_value); });
  return object;
}

nb::object map_rows(nb::handle q, nb::handle k, nb::handle chosen, nb::handle options, nb::handle value) {
  const MapsCall call("maps", q, k, options);
  const MapValue map_value = read_map_value(value);
  const std::vector<std::int64_t> rows = read_integers(chosen, "rows");
  const nb::object object = call.empty(q, {static_cast<std::int64_t>(rows.size()), call.keys()});
  const Array array = Array::output(object, "out");
  without_gil([&] { attention_map_rows(call.input(), rows, array.view(), call.sdpa, map_value); });
  return object;
}

Tuple<nb::any, nb::any> top_keys(nb::handle q, nb::handle k, nb::handle top_k, nb::handle options) {
  const MapsCall call("maps", q, k, options);
  const std::int64_t count = read_integer(top_k, "top_k", 0, call.keys());
  const nb::object probability = call.empty(q, {call.queries(), count}), key = call.empty(q, {call.queries(), count}, DType::i64);
  const Array probability_array = Array::output(probability, "probability"), key_array = Array::output(key, "key");
  without_gil([&] { attention_top_keys(call.input(), probability_array.view(), key_array.view(), call.sdpa); });
  return nb::make_tuple(probability, key);
}

ByName head_statistics(nb::handle q, nb::handle k, nb::handle options) {
  const MapsCall call("head_statistics", q, k, options);
  HeadStatistics views;
  const std::pair<const char*, TensorView*> fields[] = {{"entropy", &views.entropy}, {"largest", &views.largest}, {"distance", &views.distance},
                                                        {"first_key", &views.first_key}, {"previous_key", &views.previous_key},
                                                        {"same_key", &views.same_key}, {"next_key", &views.next_key}};
  nb::dict result;
  std::vector<Array> arrays;
  for (const auto& [name, view] : fields) {
    const nb::object object = call.empty(q, {});
    arrays.push_back(Array::output(object, name));
    *view = arrays.back().view();
    result[name] = object;
  }
  without_gil([&] { attention_statistics(call.input(), views, call.sdpa); });
  return result;
}

nb::object pooled_map(nb::handle q, nb::handle k, nb::handle height_object, nb::handle width_object, nb::handle options) {
  const MapsCall call("pooled_map", q, k, options);
  const std::int64_t height = read_integer(height_object, "height", 0, call.queries()), width = read_integer(width_object, "width", 0, call.keys());
  const nb::object object = call.empty(q, {height, width});
  const Array array = Array::output(object, "out");
  without_gil([&] { attention_pooled_map(call.input(), array.view(), call.sdpa); });
  return object;
}

}  // namespace

void bind_maps(nb::module_& m) {
  m.def("maps", &maps, any("q"), any("k"), any("options"), any("value"), any("out"));
  m.def("map_rows", &map_rows, any("q"), any("k"), any("rows"), any("options"), any("value"));
  m.def("top_keys", &top_keys, any("q"), any("k"), any("top_k"), any("options"));
  m.def("head_statistics", &head_statistics, any("q"), any("k"), any("options"));
  m.def("pooled_map", &pooled_map, any("q"), any("k"), any("height"), any("width"), any("options"));
}

}  // namespace polyhead::python
