#include "polyhead/maps.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "gil.h"
#include "options.h"

namespace polyhead::python {
namespace {

// q, k and lse of one call, alive.
struct Input {
  Array q, k, lse;
  Input(nb::handle q_object, nb::handle k_object, nb::handle lse_object)
      : q(Array::required(q_object, "q")), k(Array::required(k_object, "k")), lse(Array::input(lse_object, "lse")) {
    // Before the results' memory is made from their extents.
    if (q.view().rank() < 3) throw nb::value_error(text("q is ", to_string(q.view().shape()), "; it must be [*,N,T,H]").c_str());
    if (k.view().rank() < 3) throw nb::value_error(text("k is ", to_string(k.view().shape()), "; it must be [*,K,S,H]").c_str());
  }
  MapsInput maps() const { return {.q = q.view(), .k = k.view()}; }
  std::int64_t keys() const { return k.view().extent(-2); }
  DType dtype() const { return is_floating(q.view().dtype()) ? q.view().dtype() : DType::f32; }
  // [*,N] and what follows.
  Shape shape(std::initializer_list<std::int64_t> rest) const {
    Shape result = q.view().shape().first(q.view().rank() - 2);
    for (const std::int64_t extent : rest) result.push_back(extent);
    return result;
  }
  std::int64_t queries() const { return q.view().extent(-2); }
};

nb::object all(nb::handle q, nb::handle k, nb::handle lse, const Options& options, nb::handle value, nb::handle out) {
  const Input input(q, k, lse);
  const MapValue map_value = choice("value", read_word(value, "value"), kMapValues);
  const nb::object object = out.is_none() ? empty_array(q, input.shape({input.queries(), input.keys()}), input.dtype()) : nb::borrow(out);
  const Array array = Array::output(object, "out");
  CallOptions call(options);
  {
    const ReleasedGil released;
    attention_map(input.maps(), array.view(), call.sdpa, map_value);
  }
  return object;
}

nb::object rows(nb::handle q, nb::handle k, nb::handle lse, nb::handle chosen, const Options& options, nb::handle value) {
  const Input input(q, k, lse);
  const MapValue map_value = choice("value", read_word(value, "value"), kMapValues);
  const std::vector<std::int64_t> queries = read_integers(chosen, "rows");
  const nb::object object = empty_array(q, input.shape({static_cast<std::int64_t>(queries.size()), input.keys()}), input.dtype());
  const Array array = Array::output(object, "out");
  CallOptions call(options);
  {
    const ReleasedGil released;
    attention_map_rows(input.maps(), queries, array.view(), call.sdpa, map_value);
  }
  return object;
}

Tuple<nb::any, nb::any> top_keys(nb::handle q, nb::handle k, nb::handle lse, nb::handle top_k, const Options& options) {
  const Input input(q, k, lse);
  const std::int64_t count = read_integer(top_k, "top_k", 0, input.keys());
  const nb::object probability = empty_array(q, input.shape({input.queries(), count}), input.dtype());
  const nb::object key = empty_array(q, input.shape({input.queries(), count}), DType::i64);
  const Array probability_array = Array::output(probability, "probability"), key_array = Array::output(key, "key");
  CallOptions call(options);
  {
    const ReleasedGil released;
    attention_top_keys(input.maps(), probability_array.view(), key_array.view(), call.sdpa);
  }
  return nb::make_tuple(probability, key);
}

ByName statistics(nb::handle q, nb::handle k, nb::handle lse, const Options& options) {
  const Input input(q, k, lse);
  HeadStatistics views;
  const std::pair<const char*, TensorView*> fields[] = {{"entropy", &views.entropy}, {"largest", &views.largest}, {"distance", &views.distance},
                                                        {"first_key", &views.first_key}, {"previous_key", &views.previous_key},
                                                        {"same_key", &views.same_key}, {"next_key", &views.next_key}};
  nb::dict result;
  std::vector<Array> arrays;
  for (const auto& [name, view] : fields) {
    const nb::object object = empty_array(q, input.shape({}), input.dtype());
    arrays.push_back(Array::output(object, name));
    *view = arrays.back().view();
    result[name] = object;
  }
  CallOptions call(options);
  {
    const ReleasedGil released;
    attention_statistics(input.maps(), views, call.sdpa);
  }
  return result;
}

nb::object pooled_map(nb::handle q, nb::handle k, nb::handle lse, nb::handle height_object, nb::handle width_object, const Options& options) {
  const Input input(q, k, lse);
  const std::int64_t height = read_integer(height_object, "height", 0, input.queries()), width = read_integer(width_object, "width", 0, input.keys());
  const nb::object object = empty_array(q, input.shape({height, width}), input.dtype());
  const Array array = Array::output(object, "out");
  CallOptions call(options);
  {
    const ReleasedGil released;
    attention_pooled_map(input.maps(), array.view(), call.sdpa);
  }
  return object;
}

}  // namespace

void bind_maps(nb::module_& m) {
  m.def("attention_map", &all, nb::arg("q").none(), nb::arg("k").none(), nb::arg("lse").none(), nb::arg("options"), nb::arg("value").none(), nb::arg("out").none());
  m.def("attention_map_rows", &rows, nb::arg("q").none(), nb::arg("k").none(), nb::arg("lse").none(), nb::arg("rows").none(), nb::arg("options"), nb::arg("value").none());
  m.def("attention_top_keys", &top_keys, nb::arg("q").none(), nb::arg("k").none(), nb::arg("lse").none(), nb::arg("top_k").none(), nb::arg("options"));
  m.def("attention_statistics", &statistics, nb::arg("q").none(), nb::arg("k").none(), nb::arg("lse").none(), nb::arg("options"));
  m.def("attention_pooled_map", &pooled_map, nb::arg("q").none(), nb::arg("k").none(), nb::arg("lse").none(), nb::arg("height").none(), nb::arg("width").none(), nb::arg("options"));
}

}  // namespace polyhead::python
