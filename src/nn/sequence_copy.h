// One of the copies by which a key/value cache reorders its sequences.
#pragma once

#include <cstdint>

namespace polyhead::nn {

inline constexpr std::int64_t kSavedSequence = -1;  // in SequenceCopy: the temporary memory in which one sequence is saved

struct SequenceCopy {
  std::int64_t from, to;
};

}  // namespace polyhead::nn
