// Makes the table of attention's arguments (polyhead/attention_arguments.h) available in Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "bind.h"
#include "cache.h"
#include "option_fields.h"

namespace polyhead::python {
namespace {

const char* extent_name(ArgumentExtent extent) {
  switch (extent) {
    case ArgumentExtent::none: return "";
    case ArgumentExtent::query_heads: return "query_heads";
    case ArgumentExtent::key_heads: return "key_heads";
    case ArgumentExtent::scales: return "scales";
    case ArgumentExtent::pairs: return "pairs";
    case ArgumentExtent::query_blocks: return "query_blocks";
    case ArgumentExtent::rows: return "rows";
    case ArgumentExtent::keys: return "keys";
    case ArgumentExtent::sequences: return "sequences";
    case ArgumentExtent::documents: return "documents";
    case ArgumentExtent::heads: return "heads";
  }
  return "";
}

// The annotation that an argument of this C++ type has in Python. It uses the names of polyhead/_options.py.
const char* annotation(const ConstTensorView&) { return "Array | None"; }
const char* annotation(const std::optional<double>&) { return "float | None"; }
const char* annotation(double) { return "float"; }
const char* annotation(bool) { return "bool"; }
const char* annotation(const std::optional<bool>&) { return "bool | None"; }
const char* annotation(std::int64_t) { return "int"; }
const char* annotation(const std::optional<std::uint64_t>&) { return "int | None"; }
const char* annotation(const std::optional<LimitedThreads>&) { return "int | None"; }
const char* annotation(const std::optional<Diagonal>&) { return "Causal"; }
const char* annotation(const Window&) { return "Window"; }
const char* annotation(const BlockSize&) { return "BlockSize"; }
const char* annotation(const RelativeBias&) { return "RelativeBias | None"; }
const char* annotation(const nn::Rotary&) { return "Rotary | None"; }
const char* annotation(EmptyRows) { return "EmptyRows"; }
const char* annotation(Precision) { return "Precision"; }
const char* annotation(nn::Mode) { return "bool"; }
const char* annotation(const Backend* const&) { return "str | None"; }
const char* annotation(Cache* const&) { return "KeyValueCache | None"; }

// The default of an argument in Python: None if the C++ default is "no value".
template <class Member>
nb::object default_of(const Member&) { return nb::none(); }
nb::object default_of(double value) { return nb::float_(value); }
nb::object default_of(bool value) { return nb::bool_(value); }
nb::object default_of(std::int64_t value) { return nb::int_(value); }
nb::object default_of(EmptyRows value) { return nb::str(word_of(kEmptyRows, value).c_str()); }
nb::object default_of(Precision value) { return nb::str(word_of(kPrecisions, value).c_str()); }
nb::object default_of(nn::Mode value) { return nb::bool_(value == nn::Mode::training); }

using Row = Tuple<std::string, std::string, std::string, bool, nb::any, std::string>;

// Returns a row for each argument: (name, annotation, extent or "", whether it has a gradient, default, group). The groups are "inputs" (members of SdpaForward),
// "sdpa" (keywords of `sdpa` only), "layer" (keywords of a layer only), "pass" (keywords of both) and "relative_bias" (fields of RelativeBias).
nb::typed<nb::list, Row> arguments() {
  LayerCall layer("arguments", nb::dict());
  std::vector<std::string_view> of_layers;
  visit(layer, [&](const Argument& argument, const auto&) { of_layers.emplace_back(argument.name); });
  std::vector<std::string_view> of_sdpa;
  nb::list rows;
  const auto add = [&](const char* group, const Argument& argument, const auto& member) {
    rows.append(nb::make_tuple(argument.name, annotation(member), extent_name(argument.extent), argument.has_gradient, default_of(member), group));
  };
  const SdpaForward inputs{};
  visit_arguments(inputs, [&](const Argument& argument, const auto& member) { add("inputs", argument, member); });
  SdpaCall call;
  visit(call, [&](const Argument& argument, const auto& member) {
    of_sdpa.emplace_back(argument.name);
    const bool both = std::find(of_layers.begin(), of_layers.end(), of_sdpa.back()) != of_layers.end();
    add(both ? "pass" : "sdpa", argument, member);
  });
  visit(layer, [&](const Argument& argument, const auto& member) {
    if (std::find(of_sdpa.begin(), of_sdpa.end(), std::string_view(argument.name)) == of_sdpa.end()) add("layer", argument, member);
  });
  const RelativeBias bias;
  visit_arguments(bias, [&](const Argument& argument, const auto& member) { add("relative_bias", argument, member); });
  return nb::borrow<nb::typed<nb::list, Row>>(rows);
}

}  // namespace

void bind_arguments(nb::module_& m) { m.def("arguments", &arguments); }

}  // namespace polyhead::python
