// A layer as Python holds it.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "arrays.h"
#include "options.h"
#include "polyhead/nn/multi_head_attention.h"

namespace polyhead::python {

struct Layer {
  nn::MultiHeadAttention layer;
  Workspace workspace = {};  // of its passes, one after the other or at once

  bool frozen() const { return workspace.parameters() == Parameters::constant; }
};

nb::dict config_dict(const nn::MultiHeadAttentionConfig& config);
nn::MultiHeadAttentionConfig read_config(const nb::dict& given);  // defaults for what is not there or None

}  // namespace polyhead::python
