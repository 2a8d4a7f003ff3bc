#include "score_inputs.h"

#include "core/text.h"
#include "polyhead/error.h"

namespace polyhead::app {
namespace {

Tensor floating_q(InputTensors* in, const char* operation, const char* role) {
  Tensor q = in->required("q", role);
  require(is_floating(q.dtype()), operation, ": q is ", q.dtype(), "; it must be floating");
  return q;
}

}  // namespace

Learned::Learned(InputTensors* in, const AttentionRules& rules, DType dtype) {
  const auto taken = [&](const char* name) {
    const Tensor tensor = in->take(name);
    return !tensor || tensor.dtype() == dtype || !is_floating(dtype) ? tensor : in->as(tensor, name, accumulation_dtype(dtype), "of lse");
  };
  sink = taken("sink"), slopes = taken(kSlopes), table = taken(kTable);
  relative_bias = {.slopes = slopes, .table = table};
  apply(rules, &relative_bias);
}

ScoreInputs::ScoreInputs(InputTensors* in, const AttentionRules& rules, const char* operation, const char* required, bool layers)
    : q(floating_q(in, operation, required)),
      k(in->as(in->required("k", required), "k", q.dtype(), "of q")),
      bias(in->as(in->take("bias"), "bias", q.dtype(), "of q")),
      learned(in, rules, q.dtype()) {
  const int least = layers ? 4 : 3;
  require(q.view().rank() >= least && k.view().rank() >= least, operation, ": q is ", q.shape(), ", k ", k.shape(), "; each must have ", layers ? "four" : "three",
          " dimensions or more, ", layers ? "[L,*,N,T,H] and [L,*,K,T,H]" : "[*,N,T,H] and [*,K,S,H]");
  apply(rules, &options);
  options.bias = bias, options.sink = learned.sink, options.relative_bias = learned.relative_bias;
  const Shape lead = q.shape().first(q.view().rank() - 3);
  options.mask = mask_of(rules, layers ? lead.last(lead.size() - 1) : lead, q.extent(-2), k.extent(-2));
  in->read_masks(&options.mask);
}

}  // namespace polyhead::app
