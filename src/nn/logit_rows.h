// Logits [B,C] row by row in float64, for what chooses tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "nn/check.h"
#include "nn/rows.h"

namespace polyhead::nn {

inline void require_logits(const char* operation, ConstTensorView logits) {
  require(static_cast<bool>(logits), operation, ": logits are missing");
  require(is_floating(logits.dtype()) && logits.rank() == 2 && logits.extent(1) >= 1, operation, ": logits are ", logits.dtype(), " ", logits.shape(),
          "; they must be floating [B,C] with at least one token");
}

// f(row, values). All rows are checked before the first call: Error for NaN and infinity, and for a row of -infinity alone.
template <class F>
void for_each_row_of_logits(const char* operation, ConstTensorView logits, const F& f) {
  const std::int64_t width = logits.extent(1);
  dispatch_floating(logits.dtype(), [&](auto type) {
    const Rows<const typename decltype(type)::type> rows(logits);
    std::vector<double> values(static_cast<std::size_t>(width));
    const auto load_row = [&](std::int64_t row) {
      for (std::int64_t c = 0; c < width; ++c) values[static_cast<std::size_t>(c)] = static_cast<double>(load(rows.at(row, c)));
    };
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      load_row(row);
      require(std::ranges::all_of(values, [](double x) { return x < HUGE_VAL; }), operation, ": row ", row, " of logits holds NaN or infinity");
      require(std::ranges::any_of(values, [](double x) { return x > -HUGE_VAL; }), operation, ": row ", row, " of logits is -infinity throughout; no token is possible");
    }
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      load_row(row);
      f(row, values);
    }
  });
}

}  // namespace polyhead::nn
