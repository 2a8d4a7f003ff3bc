#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bind.h"
#include "gil.h"
#include "layer.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/models/attention_layer.h"

namespace polyhead::python {
namespace {

struct LoadOptions {
  LoadOptions(nb::handle layout, nb::handle prefix, nb::handle heads, const nb::dict& given)
      : load{.layout = read_optional_word(layout, "layout").value_or(""),
             .prefix = read_optional_word(prefix, "prefix"),
             .heads = heads.is_none() ? 0 : read_integer(heads, "heads", 1, std::int64_t{1} << 40)},
        settings(read_config(given)) {}
  io::LoadAttention load;
  nn::MultiHeadAttentionConfig settings;
};

std::unique_ptr<Layer> layer_of(io::TensorFile& file, const LoadOptions& options) {
  io::AttentionParameters parameters = io::load_attention(file, options.load);
  if (parameters.heads == 0) {
    throw nb::value_error(cat(file.path.string(), ": it does not say how many heads its layer has (layout ", parameters.layout, "); give heads=").c_str());
  }
  const bool causal = parameters.causal;
  std::string rotary_of = parameters.rotary ? parameters.layout : "";
  return std::make_unique<Layer>(
      Layer{.layer = models::attention_layer(std::move(parameters), options.settings), .causal = causal, .rotary_of = std::move(rotary_of)});
}

std::unique_ptr<Layer> load(nb::handle source, nb::handle layout, nb::handle prefix, nb::handle heads, const ByName& given) {
  const std::string path = read_path(source, "source");
  const LoadOptions options(layout, prefix, heads, given);
  return without_gil([&] {
    io::TensorFile file = io::open_tensors(path);
    std::unique_ptr<Layer> layer = layer_of(file, options);
    // Copy the parameters out of the mapped file. Otherwise a later change of the file would change the layer, and a truncated file would end the process.
    layer->layer.visit([](const std::string&, Tensor& tensor) {
      check_interrupt();
      tensor = Tensor::copy_of(tensor.view());
    });
    return layer;
  });
}

// A layer whose parameters are copies of named arrays, such as those of a state_dict or an npz file.
std::unique_ptr<Layer> from_arrays(const ByName& arrays, const std::string& source, nb::handle layout, nb::handle prefix, nb::handle heads,
                                   const ByName& settings) {
  const LoadOptions options(layout, prefix, heads, settings);
  io::TensorFile file;
  file.path = source;
  for (const auto& [key, value] : arrays) {
    const std::string name = read_word(key, "a name in source");
    const Array array = Array::required(value, name.c_str());
    file.tensors.push_back({name, Tensor::copy_of(array.view())});
  }
  return layer_of(file, options);
}

void save(const Layer& layer, nb::handle path_object, nb::handle layout_object, nb::handle prefix_object) {
  const std::string path = read_path(path_object, "path"), layout = read_word(layout_object, "layout"), prefix = read_word(prefix_object, "prefix");
  const ReleasedGil released;
  io::save_tensors(path, io::store_attention(models::attention_parameters(layer.layer, layout, prefix)));
}

// The parameters under the names of the layout, in the order of the layout.
ByName state(nb::handle self, nb::handle layout_object, nb::handle prefix_object) {
  const std::string layout = read_word(layout_object, "layout"), prefix = read_word(prefix_object, "prefix");
  nb::dict result;
  for (io::NamedTensor& named : io::store_attention(models::attention_parameters(nb::cast<const Layer&>(self).layer, layout, prefix))) {
    auto owner = std::make_unique<Tensor>(std::move(named.tensor));
    const TensorView view = owner->view();
    const nb::capsule capsule(owner.release(), [](void* tensor) noexcept { delete static_cast<Tensor*>(tensor); });
    result[named.name.c_str()] = numpy_view(view, capsule);
  }
  return result;
}

void write_file(nb::handle path_object, const nb::bytes& contents) {
  const std::string path = read_path(path_object, "path");
  const std::string_view bytes(contents.c_str(), contents.size());
  const ReleasedGil released;
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
  m.def("load", &load, any("source"), any("layout"), any("prefix"), any("heads"), nb::arg("settings") = nb::dict());
  m.def("from_arrays", &from_arrays, nb::arg("arrays"), nb::arg("source"), any("layout"), any("prefix"), any("heads"),
        nb::arg("settings") = nb::dict());
  m.def("save", &save, nb::arg("layer"), any("path"), any("layout"), any("prefix"));
  m.def("state", &state, nb::arg("layer"), any("layout"), any("prefix"));
  m.def("write_file", &write_file, any("path"), nb::arg("contents"));
  m.def("layouts", &layout_names);
}

}  // namespace polyhead::python
