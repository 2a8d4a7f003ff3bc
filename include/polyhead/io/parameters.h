// Saves and loads parameters, and checkpoints of a training run. The tensors in the file have the names that visit(f) gives them; this works for modules
// (nn/module.h), optimizers (nn/optimizer.h) and types of the caller that have visit(f). A checkpoint:
//   save_parameters(model, optimizer, "run.safetensors", {{"epoch", "3"}});
//   const Metadata saved = load_parameters(model, optimizer, "run.safetensors");
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "polyhead/io/tensor_file.h"
#include "polyhead/visit.h"

#pragma GCC visibility push(default)
namespace polyhead::io {

namespace detail {
inline constexpr std::string_view kOptimizer = "optimizer.";  // the names of an optimizer's tensors begin with this

template <VisitsTensors M>
void list_tensors(std::string_view prefix, const M& module, std::vector<NamedView>& list) {
  module.visit([&](const std::string& name, const Tensor& tensor) { list.push_back({std::string(prefix) + name, tensor.view()}); });
}
template <VisitsTensors M>
void list_tensors(std::string_view prefix, M& module, std::vector<std::pair<std::string, Tensor*>>& list) {
  module.visit([&](const std::string& name, Tensor& tensor) { list.emplace_back(std::string(prefix) + name, &tensor); });
}
Metadata load_into(const std::vector<std::pair<std::string, Tensor*>>& list, const std::filesystem::path& path, std::string_view skipped);
}  // namespace detail

// Writes the module's parameters to a file, as a whole or not at all. The extension names the file format (see save_tensors).
template <VisitsTensors M>
void save_parameters(const M& module, const std::filesystem::path& path, const Metadata& metadata = {}) {
  std::vector<NamedView> list;
  detail::list_tensors("", module, list);
  save_tensors(path, list, metadata);
}
// Writes the parameters and the optimizer's tensors to one file, so that both are always of the same training step. An optimizer's tensor has the name
// "optimizer.NAME".
template <VisitsTensors M, VisitsTensors Optimizer>
void save_parameters(const M& module, const Optimizer& optimizer, const std::filesystem::path& path, const Metadata& metadata = {}) {
  std::vector<NamedView> list;
  detail::list_tensors("", module, list);
  detail::list_tensors(detail::kOptimizer, optimizer, list);
  save_tensors(path, list, metadata);
}

// Compresses the parameters of file `from` to about a quarter of the space, and writes them to file `to`, which may be the same file. load_parameters() reads
// either file. A floating tensor of two dimensions or more becomes two tensors: NAME int8, and NAME.scale float32 with one scale for each row (quantize.h). A
// row of a matrix is its last dimension. A tensor of more dimensions has longer rows: as many of its last dimensions as are needed for 16 values, but never the
// first. Other tensors stay as they are. A tensor with a NaN or an infinity is an Error.
void quantize_parameters(const std::filesystem::path& from, const std::filesystem::path& to);

// Copies a file's tensors into the module's and returns the file's metadata. Error if the file lacks a tensor of the module, has a tensor that the module
// lacks, or has a tensor whose shape, dtype or scales do not fit. If the call throws (std::bad_alloc included), the module is unchanged. The call without an
// optimizer skips the optimizer's tensors in the file.
template <VisitsTensors M>
Metadata load_parameters(M& module, const std::filesystem::path& path) {
  std::vector<std::pair<std::string, Tensor*>> list;
  detail::list_tensors("", module, list);
  return detail::load_into(list, path, detail::kOptimizer);
}
template <VisitsTensors M, VisitsTensors Optimizer>
Metadata load_parameters(M& module, Optimizer& optimizer, const std::filesystem::path& path) {
  std::vector<std::pair<std::string, Tensor*>> list;
  detail::list_tensors("", module, list);
  detail::list_tensors(detail::kOptimizer, optimizer, list);
  return detail::load_into(list, path, {});
}

}  // namespace polyhead::io
#pragma GCC visibility pop
