// Reads logits [B,C] row by row, in float64, for sampling and beam search.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "nn/check.h"
#include "nn/rows.h"

namespace polyhead::nn {

inline void require_logits(const char* operation, ConstTensorView logits) {
  require(static_cast<bool>(logits), operation, ": logits are missing");
  require(is_floating(logits.dtype()) && logits.rank() == 2 && logits.extent(1) >= 1, operation, ": logits are ", logits.dtype(), " ",
          logits.shape(), "; they must be floating [B,C] with at least one token");
}

// Calls f(row, values) for each row for which wanted(row) is true. Error for NaN and +infinity, and for a row in which all logits are -infinity.
template <class Wanted, class F>
void for_each_row_of_logits(const char* operation, ConstTensorView logits, const Wanted& wanted, const F& f) {
  const std::int64_t width = logits.extent(1);
  dispatch_floating(logits.dtype(), [&](auto type) {
    const Rows<const typename decltype(type)::type> rows(logits);
    std::vector<double> values(static_cast<std::size_t>(width));
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      if (!wanted(row)) continue;
      const auto from = rows[row];
      bool valid = true, possible = false;
      for (std::int64_t c = 0; c < width; ++c) {
        const auto x = static_cast<double>(load(from[c]));
        values[static_cast<std::size_t>(c)] = x;
        valid &= x < HUGE_VAL;
        possible |= x > -HUGE_VAL;
      }
      require(valid, operation, ": row ", row, " of logits holds NaN or infinity");
      require(possible, operation, ": row ", row, " of logits is -infinity throughout; no token is possible");
      f(row, values);
    }
  });
}

}  // namespace polyhead::nn
