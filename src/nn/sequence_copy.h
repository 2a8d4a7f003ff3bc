// A step of reordering the sequences of a cache.
#pragma once

#include <cstdint>

namespace polyhead::nn {

inline constexpr std::int64_t kSavedSequence = -1;  // stands for the temporary memory that saves one sequence

struct SequenceCopy {
  std::int64_t from, to;
};

}  // namespace polyhead::nn
