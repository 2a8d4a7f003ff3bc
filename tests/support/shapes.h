#pragma once

#include "polyhead/tensor.h"

namespace polyhead::test {

// Returns the extents of a, followed by the extents of b.
inline Shape joined(Shape a, const Shape& b) {
  for (const std::int64_t extent : b) a.push_back(extent);
  return a;
}

}  // namespace polyhead::test
