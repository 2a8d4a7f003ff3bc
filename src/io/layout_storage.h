// From a parameter as a file stores it to its canonical form and back.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/layouts.h"
#include "polyhead/tensor.h"

namespace polyhead::io {

// How many heads the shapes of a layer tell; 0: they do not.
struct HeadCounts {
  std::int64_t heads = 0, kv_heads = 0;
};

template <class View>
using CanonicalViews = std::vector<std::pair<std::string, View>>;

// Views (TensorView or ConstTensorView) of `stored` as canonical tensors, and the heads that its shape tells. Where the shape is not what the storage asks for, nothing,
// and `why` says so.
template <class View>
CanonicalViews<View> to_canonical(const Parameter& parameter, View stored, HeadCounts& counts, std::string& why);

// The canonical tensors that a parameter holds: {"q.weight"}, {"q.bias", "k.bias", "v.bias"}.
std::vector<std::string> canonical_names(const Parameter& parameter);

// A copy of canonical tensors in the parameter's storage; all of canonical_names() are there. Error where the storage cannot express them.
Tensor from_canonical(const Parameter& parameter, const std::map<std::string, Tensor>& tensors, HeadCounts counts);

}  // namespace polyhead::io
