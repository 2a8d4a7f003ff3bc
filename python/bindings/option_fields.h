// The keyword arguments of the Python functions: those in the library's table of arguments, and those that exist only in Python. _core.arguments() returns the
// same list.
#pragma once

#include "options.h"
#include "polyhead/attention_arguments.h"

namespace polyhead::python {

// Calls f(argument, field) for every keyword argument.
template <class F>
void visit(SdpaCall& call, const F& f) {
  visit_arguments(call.sdpa, f);
  f(Argument{"num_threads"}, call.threads);
}

template <class F>
void visit(LayerCall& call, const F& f) {
  visit_shared_arguments(call.options, f);
  f(Argument{"seed"}, call.options.dropout_seed);
  f(Argument{"dropout_keep", ArgumentExtent::pairs}, call.options.dropout_keep);
  f(Argument{"backend"}, call.options.backend);
  f(Argument{"num_threads"}, call.threads);
  f(Argument{"projected_key"}, call.input.projected_key);
  f(Argument{"projected_value"}, call.input.projected_value);
  f(Argument{"projected_key_scale"}, call.input.projected_key_scale);
  f(Argument{"projected_value_scale"}, call.input.projected_value_scale);
  f(Argument{"rotary"}, call.options.rotary);
  f(Argument{"cache"}, call.cache);
  f(Argument{"new_tokens"}, call.options.new_tokens);
  f(Argument{"training"}, call.options.mode);
  f(Argument{"mask_like_input"}, call.options.mask_like_input);
}

}  // namespace polyhead::python
