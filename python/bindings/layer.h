// The C++ object behind a Python MultiHeadAttention.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "arrays.h"
#include "options.h"
#include "polyhead/nn/multi_head_attention.h"

namespace polyhead::python {

struct Layer {
  nn::MultiHeadAttention layer;
  bool causal = false;       // true: calls without `causal` are causal, with bottom_right
  std::string rotary_of;     // name of a layout whose models rotate q and k: calls without `rotary` are refused; "": `rotary` is optional
  Workspace workspace = {};  // shared by the layer's passes, which may run concurrently

  bool frozen() const { return workspace.parameters() == Parameters::constant; }
};

nn::MultiHeadAttentionConfig read_config(const nb::dict& given);  // fields that are missing or None keep their defaults

}  // namespace polyhead::python
