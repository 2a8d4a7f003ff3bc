#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bind.h"
#include "core/option_words.h"
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

// Refuses a layer if load() would make a layer with other settings from the file. A file holds only parameters; load() takes the settings from the layout and
// from defaults. `without`: names of settings that are not checked.
void require_settings(const Layer& layer, const std::string& layout, const std::vector<std::string>& without) {
  const std::vector<io::LayoutDescription> layouts = io::layouts();
  const auto row = std::ranges::find(layouts, layout, &io::LayoutDescription::name);
  const nn::MultiHeadAttentionConfig& c = layer.layer.config;
  const nn::MultiHeadAttentionConfig usual;
  const auto agree = [&](std::string_view name, const auto& given, const auto& loaded) {
    if (given == loaded || std::ranges::find(without, name) != without.end()) return;
    const bool after = name == "causal" || name == "needs_rotary", fixed = name == "causal" || (name == "empty_rows" && row->empty_rows);
    throw nb::value_error(cat(name, " is ", given, ", and load would make a layer with ", loaded, fixed ? ", as the layout '" : ", because a file in the layout '", layout,
                              fixed ? "' says" : "' does not hold it", "; write without=['", name, "']",
                              name == "empty_rows" && fixed ? " if that is wanted, or choose another layout" : after ? ", and set it again after load" : ", and give it to load again")
                              .c_str());
  };
  const auto word = [](bool value) { return std::string_view(value ? "True" : "False"); };
  agree("axis", c.axis, usual.axis);
  agree("add_zero_attn", word(c.add_zero_attn), word(false));
  agree("dropout", c.dropout, usual.dropout);
  agree("softcap", c.softcap, usual.softcap);
  agree("precision", word_of(c.precision, kPrecisionWords), word_of(usual.precision, kPrecisionWords));
  agree("masked_mean", word(c.global_query == nn::GlobalQuery::masked_mean), word(false));
  agree("empty_rows", word_of(c.empty_rows), word_of(row->empty_rows.value_or(usual.empty_rows)));
  agree("causal", word(layer.causal), word(row->causal));
  // A rotary layout need not be checked: load() makes True of it, and a call that does not give rotary then raises an error, so the change is noticed.
  if (!row->rotary) agree("needs_rotary", word(!layer.rotary_of.empty()), word(false));
}

void save(const Layer& layer, nb::handle path_object, nb::handle layout_object, nb::handle prefix_object, const std::vector<std::string>& without) {
  const std::string path = read_path(path_object, "path"), layout = read_word(layout_object, "layout"), prefix = read_word(prefix_object, "prefix");
  const std::vector<io::NamedTensor> tensors = without_gil([&] { return io::store_attention(models::attention_parameters(layer.layer, layout, prefix)); });
  require_settings(layer, layout, without);
  without_gil([&] { io::save_tensors(path, tensors); });
}

// Returns the parameters under the names of the layout, in the order of the layout.
ByName state(nb::handle self, nb::handle layout_object, nb::handle prefix_object, const std::vector<std::string>& without) {
  const std::string layout = read_word(layout_object, "layout"), prefix = read_word(prefix_object, "prefix");
  const auto& layer = nb::cast<const Layer&>(self);
  std::vector<io::NamedTensor> tensors = io::store_attention(models::attention_parameters(layer.layer, layout, prefix));
  require_settings(layer, layout, without);
  nb::dict result;
  for (io::NamedTensor& named : tensors) {
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
  m.def("save", &save, nb::arg("layer"), any("path"), any("layout"), any("prefix"), nb::arg("without") = std::vector<std::string>());
  m.def("state", &state, nb::arg("layer"), any("layout"), any("prefix"), nb::arg("without") = std::vector<std::string>());
  m.def("write_file", &write_file, any("path"), nb::arg("contents"));
  m.def("layouts", &layout_names);
}

}  // namespace polyhead::python
