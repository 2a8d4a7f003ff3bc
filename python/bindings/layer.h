// A layer of a Python object.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "arrays.h"
#include "options.h"
#include "polyhead/nn/multi_head_attention.h"

namespace polyhead::python {

struct Layer {
  nn::MultiHeadAttention layer;
  bool causal = false;       // where a call does not say: bottom right
  Workspace workspace = {};  // shared by its passes, which may run at once

  bool frozen() const { return workspace.parameters() == Parameters::constant; }
};

nb::dict config_dict(const nn::MultiHeadAttentionConfig& config);
nn::MultiHeadAttentionConfig read_config(const nb::dict& given);  // a field that is missing or None has its default

}  // namespace polyhead::python
