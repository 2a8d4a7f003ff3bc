// The list of options: names and fields.
#pragma once

#include "options.h"

namespace polyhead::python {

// Calls f(name, field) for every keyword argument; _options.py lists the same names.
template <class Options, class F>
void visit(CallArguments& call, Options& options, ConstTensorView& dropout_keep, const F& f) {
  f("attend", options.mask.attend);
  f("block", options.mask.block);
  f("attend_keys", options.mask.attend_keys);
  f("block_keys", options.mask.block_keys);
  f("causal", options.mask.causal);
  f("window", options.mask.window);
  f("key_lengths", options.mask.key_lengths);
  f("diagonal_offsets", options.mask.diagonal_offsets);
  f("query_offsets", options.mask.query_offsets);
  f("key_offsets", options.mask.key_offsets);
  f("blocks", options.mask.blocks.lists);
  f("block_size", options.mask.blocks.size);
  f("bias", options.bias);
  f("relative_bias", options.relative_bias);
  f("sink", options.sink);
  f("seed", call.seed);
  f("dropout_keep", dropout_keep);
  f("backend", options.backend);
  f("num_threads", call.threads);
}

template <class F>
void visit(SdpaCall& call, const F& f) {
  visit(call, call.sdpa, call.sdpa.dropout.keep, f);
  f("scale", call.sdpa.scale);
  f("softcap", call.sdpa.softcap);
  f("dropout", call.sdpa.dropout.p);
  f("empty_rows", call.sdpa.empty_rows);
  f("precision", call.sdpa.precision);
}

}  // namespace polyhead::python
