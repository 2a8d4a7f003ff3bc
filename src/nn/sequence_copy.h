// A step of reordering the sequences of a cache.
#pragma once

#include <cstdint>

namespace polyhead::nn {

inline constexpr std::int64_t kSavedSequence = -1;  // memory beside the cache, for one sequence

struct SequenceCopy {
  std::int64_t from, to;
};

}  // namespace polyhead::nn
