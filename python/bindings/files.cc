#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bind.h"
#include "layer.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/models/attention_layer.h"

namespace polyhead::python {
namespace {

struct Loaded {
  Layer layer;
  std::string layout, prefix;
  bool causal;
};

Loaded layer_of(io::TensorFile& file, const std::optional<std::string>& layout, const std::optional<std::string>& prefix, std::optional<std::int64_t> heads) {
  io::AttentionWeights weights = io::load_attention(file, {.layout = layout.value_or(""), .prefix = prefix.value_or(""), .heads = heads.value_or(0)});
  if (weights.heads == 0) {
    throw nb::value_error(text("'", file.path.string(), "' does not say how many heads its layer has (layout ", weights.layout, "); give heads=").c_str());
  }
  Loaded loaded{.layer = {}, .layout = weights.layout, .prefix = weights.prefix, .causal = weights.causal};
  loaded.layer.layer = models::attention_layer(std::move(weights));
  return loaded;
}

nb::tuple as_tuple(Loaded loaded) { return nb::make_tuple(nb::cast(std::move(loaded.layer)), loaded.layout, loaded.prefix, loaded.causal); }

nb::tuple load(const std::string& path, const std::optional<std::string>& layout, const std::optional<std::string>& prefix, std::optional<std::int64_t> heads) {
  Loaded loaded = [&] {
    const nb::gil_scoped_release released;
    io::TensorFile file = io::open_tensors(path);
    return layer_of(file, layout, prefix, heads);
  }();
  return as_tuple(std::move(loaded));
}

// From arrays by name (a state_dict, an npz): copied into the layer.
nb::tuple from_arrays(const nb::dict& arrays, const std::string& source, const std::optional<std::string>& layout, const std::optional<std::string>& prefix,
                      std::optional<std::int64_t> heads) {
  io::TensorFile file;
  file.path = source;
  for (const auto& [key, value] : arrays) {
    const std::string name = nb::str(key).c_str();
    const Array array = Array::required(value, name.c_str());
    file.tensors.push_back({name, Tensor::copy_of(array.view())});
  }
  return as_tuple(layer_of(file, layout, prefix, heads));
}

void save(const Layer& layer, const std::string& path, const std::string& layout, const std::string& prefix) {
  const nb::gil_scoped_release released;
  io::save_tensors(path, io::store_attention(models::attention_weights(layer.layer, layout, prefix)));
}

// name -> array, in the file's order.
nb::dict state(nb::handle self, const std::string& layout, const std::string& prefix) {
  nb::dict result;
  for (io::NamedTensor& named : io::store_attention(models::attention_weights(nb::cast<const Layer&>(self).layer, layout, prefix))) {
    auto owner = std::make_unique<Tensor>(std::move(named.tensor));
    const TensorView view = owner->view();
    const nb::capsule capsule(owner.release(), [](void* tensor) noexcept { delete static_cast<Tensor*>(tensor); });
    result[named.name.c_str()] = numpy_view(view, capsule);
  }
  return result;
}

void write_file(const std::string& path, const nb::bytes& contents) {
  const std::string_view bytes(contents.c_str(), contents.size());
  const nb::gil_scoped_release released;
  io::AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

std::vector<std::string> layout_names() {
  std::vector<std::string> names;
  for (const io::LayoutDescription& layout : io::layouts()) names.emplace_back(layout.name);
  return names;
}

}  // namespace

void bind_files(nb::module_& m) {
  m.def("load", &load, nb::arg("path"), nb::arg("layout").none(), nb::arg("prefix").none(), nb::arg("heads").none());
  m.def("from_arrays", &from_arrays, nb::arg("arrays"), nb::arg("source"), nb::arg("layout").none(), nb::arg("prefix").none(), nb::arg("heads").none());
  m.def("save", &save, nb::arg("layer"), nb::arg("path"), nb::arg("layout"), nb::arg("prefix"));
  m.def("state", &state, nb::arg("layer"), nb::arg("layout"), nb::arg("prefix"));
  m.def("write_file", &write_file, nb::arg("path"), nb::arg("contents"));
  m.def("layouts", &layout_names);
}

}  // namespace polyhead::python
