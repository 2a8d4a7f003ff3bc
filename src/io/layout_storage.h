// Converts a parameter between its form in a file and its canonical form.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/layouts.h"
#include "polyhead/tensor.h"

namespace polyhead::io {

// Numbers of heads as the shapes of a layer tell them; 0: unknown.
struct HeadCounts {
  std::int64_t heads = 0, kv_heads = 0;
};

template <class View>
using CanonicalViews = std::vector<std::pair<std::string, View>>;

// Views (TensorView or ConstTensorView) of `stored` as canonical tensors; sets the numbers of heads that its shape tells. A shape that does
// not fit the storage gives no views and a reason in `why`.
template <class View>
CanonicalViews<View> to_canonical(const Parameter& parameter, View stored, HeadCounts& counts, std::string& why);

// The canonical tensors that a parameter holds: {"q.weight"}, {"q.bias", "k.bias", "v.bias"}.
std::vector<std::string> canonical_names(const Parameter& parameter);

// A copy of the canonical tensors in the parameter's storage. `tensors` has all canonical_names(); Error when the storage cannot hold them.
Tensor from_canonical(const Parameter& parameter, const std::map<std::string, Tensor>& tensors, HeadCounts counts);

}  // namespace polyhead::io
