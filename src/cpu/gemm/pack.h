#pragma once

#include <algorithm>
#include <type_traits>

#include "core/axis.h"
#include "core/dispatch.h"

namespace polyhead::cpu {

struct Range {
  std::int64_t first, last;
  std::int64_t size() const { return last - first; }
};

// One panel [depth,Width] of `count` <= Width lines; the others are zero. A count known at compile time lets the loops over lines unroll.
template <int Width, class T, class Count>
void pack_panel(const T* data, const std::int64_t* start, Count count, const Axis& depth, Range k, Accumulator<T>* panel) {
  for (std::int64_t at = k.first; at < k.last; ++at, panel += Width) {
    const T* column = data + depth[at];
    for (int i = 0; i < count; ++i) panel[i] = load(column[start[i]]);
    for (int i = count; i < Width; ++i) panel[i] = 0;
  }
}

// Lays `lines` (rows of A or columns of B) out as panels of Width lines, [panel, depth, Width], in the accumulator's type, so that the
// kernel reads memory in one direction.
template <int Width, class T>
void pack(const T* data, const Axis& lines, Range line, const Axis& depth, Range k, Accumulator<T>* panels) {
  for (std::int64_t first = line.first; first < line.last; first += Width, panels += Width * k.size()) {
    const int count = static_cast<int>(std::min<std::int64_t>(Width, line.last - first));
    std::int64_t start[Width] = {};
    for (int i = 0; i < count; ++i) start[i] = lines[first + i];
    if (count == Width) {
      pack_panel<Width>(data, start, std::integral_constant<int, Width>{}, depth, k, panels);
    } else {
      pack_panel<Width>(data, start, count, depth, k, panels);
    }
  }
}

}  // namespace polyhead::cpu
