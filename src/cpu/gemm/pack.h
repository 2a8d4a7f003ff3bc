#pragma once

#include <algorithm>

#include "core/axis.h"
#include "core/dispatch.h"

namespace polyhead::cpu {

struct Range {
  std::int64_t first, last;
  std::int64_t size() const { return last - first; }
};

// Lays `lines` (rows of A or columns of B) out as panels of Width lines, [panel, depth, Width], in the accumulator's type, so that the kernel
// reads memory in one direction. Lines that the last panel lacks are zero.
template <int Width, class T>
void pack(const T* data, const Axis& lines, Range line, const Axis& depth, Range k, Accumulator<T>* panels) {
  for (std::int64_t first = line.first; first < line.last; first += Width) {
    const int count = static_cast<int>(std::min<std::int64_t>(Width, line.last - first));
    std::int64_t start[Width];
    for (int i = 0; i < count; ++i) start[i] = lines[first + i];
    for (std::int64_t at = k.first; at < k.last; ++at, panels += Width) {
      const std::int64_t offset = depth[at];
      for (int i = 0; i < count; ++i) panels[i] = load(data[start[i] + offset]);
      for (int i = count; i < Width; ++i) panels[i] = 0;
    }
  }
}

}  // namespace polyhead::cpu
