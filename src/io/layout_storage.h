// Converts a parameter between its form in a file and its canonical form, which AttentionParameters lists.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/layouts.h"
#include "polyhead/tensor.h"

namespace polyhead::io {

// Numbers of heads, as far as they follow from the shapes of a layer's tensors; 0: unknown.
struct HeadCounts {
  std::int64_t heads = 0, kv_heads = 0;
};

template <class View>
using CanonicalViews = std::vector<std::pair<std::string, View>>;

// Returns views (TensorView or ConstTensorView) of `stored` as canonical tensors, and sets the numbers of heads that follow from its shape.
// If the shape does not fit the parameter's storage, returns no views and sets `why` to the reason.
template <class View>
CanonicalViews<View> to_canonical(const Parameter& parameter, View stored, HeadCounts& counts, std::string& why);

// Names of the canonical tensors that a parameter holds: {"q.weight"}, {"q.bias", "k.bias", "v.bias"}.
std::vector<std::string> canonical_names(const Parameter& parameter);

// The reverse of to_canonical(): returns the tensor that a file stores for the parameter, as a copy. `tensors` must have all canonical_names(). Error if their
// shapes do not fit the parameter's storage.
Tensor from_canonical(const Parameter& parameter, const std::map<std::string, Tensor>& tensors, HeadCounts counts);

}  // namespace polyhead::io
