#include "polyhead/nn/positions.h"

#include <cmath>

#include "nn/check.h"
#include "nn/rows.h"

namespace polyhead::nn {

void sinusoidal_positions(TensorView out, std::int64_t first, double base) {
  constexpr const char* kOperation = "sinusoidal_positions";
  require(static_cast<bool>(out) && is_floating(out.dtype()) && out.rank() == 2, kOperation, ": out is ", out.dtype(), " ", out.shape(),
          "; it must be a floating tensor [T,E]");
  require(base > 0, kOperation, ": base is ", base, "; it must be positive");
  require_no_overlap(kOperation, {"out", out}, {});
  const std::int64_t positions = out.extent(0), width = out.extent(1);
  dispatch_floating(out.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Rows<T> rows(out);
    for (std::int64_t e = 0; e < width; ++e) {
      const double frequency = std::pow(base, -static_cast<double>(e - e % 2) / static_cast<double>(width));
      for (std::int64_t t = 0; t < positions; ++t) {
        const double angle = static_cast<double>(first + t) * frequency;
        rows.at(t, e) = store<T>(e % 2 == 0 ? std::sin(angle) : std::cos(angle));
      }
    }
  });
}

}  // namespace polyhead::nn
