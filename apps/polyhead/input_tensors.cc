#include "input_tensors.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/text.h"
#include "format.h"
#include "suggest.h"
#include "terminal.h"
#include "words.h"

namespace polyhead::app {
namespace {

constexpr std::size_t kNamed = 6;  // names in a sentence, before "and 3 more"

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamed); ++i) append(text, cat(text.empty() ? "" : ", ", printable(names[i])));
  if (names.size() > kNamed) append(text, cat(" and ", names.size() - kNamed, " more"));
  return text;
}

bool is_result(const std::string& name) {
  constexpr std::array<std::string_view, 5> kResults{"out", "weights", "lse", "top_keys", "top_weights"};
  return std::find(kResults.begin(), kResults.end(), name) != kResults.end() || (name.starts_with("d_") && name != "d_out");
}

}  // namespace

Tensor InputTensors::take(const std::string& name) {
  Tensor* found = file_.find(name);
  if (!found) return {};
  taken_.insert(name);
  return Tensor::share(found->view(), found->owner());  // the file's memory, not a copy
}

Tensor InputTensors::required(const std::string& name, std::string_view role) {
  if (Tensor tensor = take(name)) return tensor;
  std::vector<std::string> names;
  for (const io::NamedTensor& named : file_.tensors) names.push_back(named.name);
  const std::string near = closest(name, names);
  fail(ErrorCode::format, "'", printable(path_), "' has no tensor '", name, "', ", role, "; it has ", names.empty() ? "none at all" : listed(names),
       near.empty() ? "" : cat("; is it '", printable(near), "'?"));
}

Tensor InputTensors::as(Tensor tensor, const std::string& name, DType dtype, std::string_view whose) {
  if (!tensor || tensor.dtype() == dtype) return tensor;
  if (!is_floating(tensor.dtype())) fail(ErrorCode::format, "'", printable(path_), "': ", name, " is ", tensor.dtype(), "; it must be floating");
  if (info(tensor.dtype()).size >= info(dtype).size && noted_.insert(tensor.dtype()).second) {
    note(cat(name, " is ", tensor.dtype(), "; it is converted to ", dtype, ", the dtype ", whose));
  }
  return Tensor::copy_of(tensor, dtype);
}

void InputTensors::read_masks(Mask* mask) {
  const auto read = [&](const char* name, Tensor* keep, ConstTensorView* view) {
    if (!has(name)) return;
    *keep = take(name);
    *view = *keep;
  };
  read("attend", &attend_, &mask->attend);
  read("block", &block_, &mask->block);
  read("attend_keys", &attend_keys_, &mask->attend_keys);
  read("block_keys", &block_keys_, &mask->block_keys);
  if (mask->key_lengths && has("key_lengths")) fail(ErrorCode::invalid_argument, "--key-lengths is given and '", printable(path_), "' has key_lengths; only one may be");
  read("key_lengths", &lengths_, &mask->key_lengths);
}

void InputTensors::report_unused(std::vector<std::string> inputs, std::span<const std::string> parameters) const {
  std::vector<std::string> known = std::move(inputs);
  known.insert(known.end(), {"attend", "block", "attend_keys", "block_keys", "key_lengths", "bias", "dropout_keep", "d_out"});
  std::vector<std::string> free_names, others;
  for (const std::string& name : known) {
    if (!has(name)) free_names.push_back(name);
  }
  for (const io::NamedTensor& named : file_.tensors) {
    const std::string& name = named.name;
    if (taken_.contains(name) || is_result(name) || std::find(parameters.begin(), parameters.end(), name) != parameters.end()) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) {
      note(cat("'", name, "' in '", printable(path_), "' is not used with these options"));
    } else if (const std::string near = closest(name, free_names); !near.empty()) {
      note(cat("'", printable(name), "' in '", printable(path_), "' is not used; did you mean '", near, "'?"));
    } else if (name.find("mask") != std::string::npos) {
      note(cat("'", printable(name), "' in '", printable(path_),
               "' is not used; the name of a mask says what true means: attend (may look) or block (may not)"));
    } else {
      others.push_back(name);
    }
  }
  if (!others.empty()) note(cat(counted(static_cast<std::int64_t>(others.size()), "tensor"), " of '", printable(path_), "' not used: ", listed(others)));
}

}  // namespace polyhead::app
