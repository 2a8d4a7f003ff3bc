#include "input_tensors.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/join.h"
#include "format.h"
#include "suggest.h"
#include "terminal.h"
#include "text_layout.h"

namespace polyhead::app {
namespace {

std::string listed(const std::vector<std::string>& names) { return join(names, printable, ", ", 6); }

bool is_result(const std::string& name) {
  constexpr std::array<std::string_view, 13> kResults{"out", "attention_weights", "norm_weighted_map", "value_norms", "lse", "top_keys", "top_attention_weights", "pooled_map", "key_sums", "head_divergence", "map_window", "key_mass", "rollout"};
  return std::find(kResults.begin(), kResults.end(), name) != kResults.end() || name.starts_with("statistics.") || (name.starts_with("d_") && name != "d_out");
}

}  // namespace

std::string_view mask_tensor(ArgumentExtent extent) {
  switch (extent) {
    case ArgumentExtent::pairs: return "boolean [*,N,T,S]";
    case ArgumentExtent::keys: return "boolean [*,S]";
    case ArgumentExtent::sequences: return "integers [*] or [*,T]";
    case ArgumentExtent::documents: return "integers [D+1]";
    case ArgumentExtent::query_blocks: return "integers [*,N,Tb,count]: the blocks of keys that each block of queries attends to, or -1 for none; see --block-size";
    default: return "see docs/shapes.md";
  }
}

std::string mask_tensors() {
  std::vector<std::pair<ArgumentExtent, std::string>> groups;
  const Mask mask;
  visit_arguments(mask, TensorArguments{[&](const Argument& argument, const ConstTensorView&) {
    const auto group = std::ranges::find(groups, argument.extent, &std::pair<ArgumentExtent, std::string>::first);
    if (group == groups.end()) groups.emplace_back(argument.extent, argument.path());
    else group->second += cat(", ", argument.path());
  }});
  std::string text;
  for (const auto& [extent, names] : groups) text += cat(text.empty() ? "" : "; ", names, " (", mask_tensor(extent), ")");
  return text;
}

Tensor InputTensors::take(const std::string& name) {
  Tensor* found = file_.find(name);
  if (!found) return {};
  taken_.insert(name);
  return Tensor::share(found->view(), found->owner());  // the returned tensor shares the memory of the file
}

Tensor InputTensors::required(const std::string& name, std::string_view role) {
  if (Tensor tensor = take(name)) return tensor;
  std::vector<std::string> names;
  for (const io::NamedTensor& named : file_.tensors) names.push_back(named.name);
  const std::string near = closest(name, names);
  fail(ErrorCode::format, "'", printable(path_), "' has no tensor '", name, "', ", role, names.empty() ? "; it has no tensors" : cat("; its tensors: ", listed(names)),
       near.empty() ? "" : cat("; is it '", printable(near), "'?"));
}

Tensor InputTensors::as(Tensor tensor, const std::string& name, DType dtype, std::string_view whose) {
  if (!tensor || tensor.dtype() == dtype) return tensor;
  if (!is_floating(tensor.dtype())) fail(ErrorCode::format, "'", printable(path_), "': ", name, " is ", tensor.dtype(), "; it must be floating");
  if (info(tensor.dtype()).size >= info(dtype).size && noted_.insert(tensor.dtype()).second) {
    print_note(cat(name, " is ", tensor.dtype(), "; it is converted to ", dtype, ", the dtype ", whose));
  }
  return Tensor::copy_of(tensor, dtype);
}

void InputTensors::read_masks(Mask* mask) {
  visit_arguments(*mask, TensorArguments{[&](const Argument& argument, ConstTensorView& view) {
    if (!has(argument.path())) return;
    if (view) fail(ErrorCode::invalid_argument, "both an option and '", printable(path_), "' give ", argument.path(), "; give it once");
    view = masks_.emplace_back(take(argument.path()));
  }});
}

void InputTensors::report_unused(std::vector<std::string> inputs, std::span<const std::string> parameters) const {
  std::vector<std::string> known = std::move(inputs);
  known.insert(known.end(), {"d_out", "key_sets"});
  const SdpaOptions options;
  visit_arguments(options, TensorArguments{[&](const Argument& argument, const ConstTensorView&) { known.emplace_back(argument.path()); }});
  std::vector<std::string> free_names, others;
  const std::string file = cat("'", printable(path_), "'");
  const auto note = [](const auto&... parts) { print_note(cat(parts...)); };
  for (const std::string& name : known) {
    if (!has(name)) free_names.push_back(name);
  }
  for (const io::NamedTensor& named : file_.tensors) {
    const std::string& name = named.name;
    if (taken_.contains(name) || is_result(name) || std::find(parameters.begin(), parameters.end(), name) != parameters.end()) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) {
      note("'", name, "' in ", file, " is not used with these options");
    } else if (const std::string near = closest(name, free_names); !near.empty()) {
      note("'", printable(name), "' in ", file, " is not used; did you mean '", near, "'?");
    } else if (name.find("mask") != std::string::npos) {
      note("'", printable(name), "' in ", file,
           " is not used; name a mask by what true means: attend (the query may attend to the key) or block (it may not)");
    } else {
      others.push_back(name);
    }
  }
  if (!others.empty()) note(counted(others.size(), "tensor"), " of ", file, " not used: ", listed(others));
}

}  // namespace polyhead::app
