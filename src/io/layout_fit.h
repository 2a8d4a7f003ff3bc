// Whether a naming fits the tensors at a prefix, and if not, what is in the way.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "io/layout_storage.h"
#include "polyhead/io/attention_parameters.h"

namespace polyhead::io {

// The tensors of a file by name.
using TensorIndex = std::map<std::string, ConstTensorView, std::less<>>;

struct Place {
  const Layout* layout = nullptr;
  const std::vector<Parameter>* parameters = nullptr;  // of the layout: one of its two sets
  std::string prefix;
  Spelling spelling;

  std::string name_of(const Parameter& parameter) const;  // in the file
};

struct Fit {
  Place place;
  std::string misfit;              // empty: it fits
  double present = 0;              // share of the required parameters that are there
  std::vector<std::string> names;  // what follows is filled in where it fits
  std::map<std::string, ConstTensorView> tensors;
  HeadCounts counts;
  bool global_query = false;
};

Fit fit(const TensorIndex& index, Place place);

}  // namespace polyhead::io
