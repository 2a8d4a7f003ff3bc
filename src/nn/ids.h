// Reads the class numbers or token ids that a caller passes.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "core/overlap.h"

namespace polyhead::nn {

// Returns all ids (int64 or int32) in row-major order. An id that is neither in [0, count) nor `ignored` is an Error that names it.
std::vector<std::int64_t> checked_ids(std::string_view operation, const Operand& ids, std::int64_t count,
                                      std::optional<std::int64_t> ignored = {});

}  // namespace polyhead::nn
