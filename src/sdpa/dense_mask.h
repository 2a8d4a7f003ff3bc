#pragma once

#include "polyhead/mask.h"
#include "polyhead/tensor.h"

namespace polyhead {

// Returns the whole mask as one boolean tensor, true = may attend. heads as in [*,N,T,S]; the result is [*,N',T,S] with N' = 1 unless a part of the
// mask differs between heads. Errors name the operation. Layers call this if they add keys to a masked sequence or average its unmasked positions;
// other callers pass on the tensors of the mask unchanged.
Tensor dense_mask(const char* operation, const Mask& mask, const Shape& lead, std::int64_t heads, std::int64_t queries, std::int64_t keys);

}  // namespace polyhead
