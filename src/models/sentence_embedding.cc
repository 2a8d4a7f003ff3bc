#include <algorithm>
#include <cmath>
#include <vector>

#include "core/dispatch.h"
#include "core/index.h"
#include "nn/check.h"
#include "polyhead/models/sentence_model.h"

namespace polyhead::models {

void sentence_embedding(ConstTensorView hidden, ConstTensorView attend_keys, TensorView out) {
  constexpr const char* kOperation = "sentence_embedding";
  require(hidden && hidden.rank() >= 2, kOperation, ": hidden is ", hidden.shape(), "; it must be [*,T,E]");
  const int leading = hidden.rank() - 2;
  Shape pooled = hidden.shape();
  pooled.erase(leading);
  nn::require_shape(kOperation, {"out", out}, pooled);
  if (attend_keys) nn::require_parameter(kOperation, {"attend_keys", attend_keys}, hidden.shape().first(leading + 1), DType::boolean);
  nn::require_separate(kOperation, {"out", out}, {{"hidden", hidden}, {"attend_keys", attend_keys}});

  const std::int64_t length = hidden.extent(-2), width = hidden.extent(-1), texts = numel(hidden.shape().first(leading));
  std::vector<double> mean(static_cast<std::size_t>(width));
  dispatch_floating(hidden.dtype(), [&](auto from) {
    dispatch_floating(out.dtype(), [&](auto to) {
      using From = typename decltype(from)::type;
      using To = typename decltype(to)::type;
      const auto offset = [&](const auto& view, std::int64_t text) {
        return offset_at(view.shape().first(leading), view.strides().first(leading), text);
      };
      for (std::int64_t text = 0; text < texts; ++text) {
        const From* x = hidden.data<From>() + offset(hidden, text);
        const bool* keep = attend_keys ? attend_keys.data<bool>() + offset(attend_keys, text) : nullptr;
        std::fill(mean.begin(), mean.end(), 0.0);
        std::int64_t count = 0;
        for (std::int64_t t = 0; t < length; ++t) {
          if (keep != nullptr && !keep[t * attend_keys.stride(-1)]) continue;
          ++count;
          for (std::int64_t e = 0; e < width; ++e)
            mean[static_cast<std::size_t>(e)] += static_cast<double>(load(x[t * hidden.stride(-2) + e * hidden.stride(-1)]));
        }
        double squares = 0;
        for (double& value : mean) {
          if (count > 0) value /= static_cast<double>(count);
          squares += value * value;
        }
        const double norm = std::max(std::sqrt(squares), 1e-12);
        To* y = out.data<To>() + offset(out, text);
        for (std::int64_t e = 0; e < width; ++e) y[e * out.stride(-1)] = store<To>(mean[static_cast<std::size_t>(e)] / norm);
      }
    });
  });
}

}  // namespace polyhead::models
