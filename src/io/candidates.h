// Finds attention layers in a file: checks whether the tensors at a prefix fit a layout, and gives the reason if they do not.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "io/layout_storage.h"
#include "polyhead/io/attention_parameters.h"

namespace polyhead::io {

// The tensors of a file by name.
using TensorIndex = std::map<std::string, ConstTensorView, std::less<>>;
TensorIndex index_of(const std::vector<NamedTensor>& tensors);

struct Candidate {
  const Layout* layout = nullptr;
  const std::vector<Parameter>* parameters = nullptr;  // layout->parameters or layout->otherwise
  std::string prefix;
  Spelling spelling;

  // Members that checked() sets:
  std::string reason{};              // why the layer does not fit; empty: it fits
  std::vector<std::string> missing{};  // required parameters that the file lacks, as the file would name them
  double present = 0;                // share of the required parameters that the file has
  std::vector<std::string> names{};  // names of the layer's tensors in the file; names and all members below are complete only if the layer fits
  std::map<std::string, ConstTensorView> tensors{};
  HeadCounts counts{};
  std::int64_t group = 1;  // N / K, query heads per key/value head; 1 if the shapes do not determine it
  bool global_query = false;

  std::string name_of(const Parameter& parameter) const;  // the parameter's name in the file
  std::string description() const;                        // "torch" at "encoder.layers.0.self_attn."
};

Candidate checked(const TensorIndex& index, Candidate candidate);

struct Candidates {
  std::vector<Candidate> fits;    // sorted by the place of their first tensor in the file
  std::vector<Candidate> misses;  // sorted by the share of required parameters that the file has, the largest first
};
Candidates find_candidates(const std::vector<NamedTensor>& tensors);

}  // namespace polyhead::io
