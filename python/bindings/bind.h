// The functions that add bindings to the module, in the order in which module.cc calls them. Each function is in a file of its own. The comment beside it names
// the headers whose contents it binds.
#pragma once

#include <nanobind/nanobind.h>

namespace polyhead::python {

// A function argument of any type, None included. The bound function converts the argument itself, so that error messages name the argument.
constexpr auto any(const char* name) { return nanobind::arg(name).none(); }

void bind_arguments(nanobind::module_& m);  // attention_arguments.h
void bind_sdpa(nanobind::module_& m);     // sdpa.h
void bind_torch_attention(nanobind::module_& m);  // sdpa.h, for the fast path of polyhead.torch
void bind_score_program(nanobind::module_& m);  // score_program.h
void bind_maps(nanobind::module_& m);     // maps.h
void bind_layer(nanobind::module_& m);    // nn/multi_head_attention.h
void bind_layer_pass(nanobind::module_& m);  // nn/multi_head_attention.h, for the layers of polyhead.torch, which hold their parameters themselves
void bind_pair_bias(nanobind::module_& m);   // nn/pair_bias.h
void bind_cache(nanobind::module_& m);    // nn/key_value_cache.h, nn/rotary_embedding.h
void bind_files(nanobind::module_& m);    // io/attention_parameters.h
void bind_device(nanobind::module_& m);   // device.h, executor.h
void bind_distributed(nanobind::module_& m);  // distributed.h
void bind_jax(nanobind::module_& m);      // sdpa.h, for XLA
void bind_viewer(nanobind::module_& m);   // viewer.h, models/sentence_model.h
void bind_models(nanobind::module_& m);   // models/default_models.h and the trained models
void bind_image_models(nanobind::module_& m);  // models/vision_encoder.h
void bind_program(nanobind::module_& m);  // the command line program

}  // namespace polyhead::python
