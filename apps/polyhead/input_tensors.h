// A command's file of input tensors: looks tensors up by name, converts them, and reports the tensors that were not used.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/attention_arguments.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/mask.h"

namespace polyhead::app {

constexpr std::string_view kOfParameters = "of the layer's parameters";
constexpr const char *kSlopes = "relative_bias.slopes", *kTable = "relative_bias.table";

// For help: the type and shape that a tensor of a mask must have, such as "boolean [*,N,T,S]".
std::string_view mask_tensor(ArgumentExtent extent);
// For help: the names and shapes of all mask tensors that a file may have, such as "attend, block (boolean [*,N,T,S]); attend_keys, ...".
std::string mask_tensors();

class InputTensors {
 public:
  explicit InputTensors(const std::string& path) : file_(io::open_tensors(path)), path_(path) {}

  bool has(std::string_view name) const { return file_.find(name) != nullptr; }
  DType dtype(std::string_view name) const { return file_.at(name).dtype(); }
  // Throws Error (format), with a list of the file's tensors, if no tensor has this name.
  Tensor required(const std::string& name, std::string_view role);
  Tensor take(const std::string& name);  // returns an absent tensor if the file has no tensor of this name

  // Converts a tensor to `dtype`. Prints a note on stderr if the conversion rounds; `whose` completes the note's "the dtype ...", such as "of q". Error if the
  // tensor is not floating.
  Tensor as(Tensor tensor, const std::string& name, DType dtype, std::string_view whose);

  // Sets the members of `mask` for which the file has a tensor, to views of memory that this object owns.
  void read_masks(Mask* mask);

  // Prints notes on stderr about unused tensors of the file. A tensor has its own note if its name is known (`inputs`, masks, biases), close to a known name that
  // the file lacks, or contains "mask". One more note lists all others. Names of results (out, lse, d_q, ...) and names in `parameters` are not mentioned.
  void report_unused(std::vector<std::string> inputs, std::span<const std::string> parameters) const;

 private:
  io::TensorFile file_;
  std::string path_;
  std::set<std::string, std::less<>> taken_;
  std::vector<Tensor> masks_;
  std::set<DType> noted_;
};

}  // namespace polyhead::app
