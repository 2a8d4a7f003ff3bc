// The tensors file of a command: hands out what attention asks for and tells what nobody asked for.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/io/tensor_file.h"
#include "polyhead/mask.h"

namespace polyhead::app {

constexpr std::string_view kOfParameters = "of the layer's parameters";

class InputTensors {
 public:
  explicit InputTensors(const std::string& path) : file_(io::open_tensors(path)), path_(path) {}

  bool has(std::string_view name) const { return file_.find(name) != nullptr; }
  DType dtype(std::string_view name) const { return file_.at(name).dtype(); }
  // Error (format) that lists the file's tensors when there is none such.
  Tensor required(const std::string& name, std::string_view role);
  Tensor take(const std::string& name);  // absent: there is none

  // The tensor in another dtype; a note on stderr where that rounds, which says whose dtype it is. Error where it is not floating.
  Tensor as(Tensor tensor, const std::string& name, DType dtype, std::string_view whose);

  // Dense masks and key masks, and lengths where the options gave none. Views of memory that this object keeps.
  void read_masks(Mask* mask);

  // Notes on stderr about tensors that were not taken: one for each that is nearly a known name (`inputs`, masks, biases), one for the
  // rest. Results and the names in `parameters` are expected and not mentioned.
  void report_unused(std::vector<std::string> inputs, std::span<const std::string> parameters) const;

  const std::string& path() const { return path_; }

 private:
  io::TensorFile file_;
  std::string path_;
  std::set<std::string, std::less<>> taken_;
  Tensor lengths_, attend_, block_, attend_keys_, block_keys_;
  std::set<DType> noted_;
};

}  // namespace polyhead::app
