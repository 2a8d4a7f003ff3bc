#pragma once

#include "polyhead/mask.h"
#include "polyhead/tensor.h"

namespace polyhead {

// Returns the whole mask as one boolean tensor [*,N',T,S], in which true means "may attend". N' = 1 if all heads have the same mask, else N' = heads. Errors
// name the operation. Layers call dense_mask() if they add keys to a masked sequence or average the unmasked positions of a sequence. Other callers pass on the
// tensors of the mask unchanged.
Tensor dense_mask(const char* operation, const Mask& mask, const Shape& lead, std::int64_t heads, std::int64_t queries, std::int64_t keys);

}  // namespace polyhead
