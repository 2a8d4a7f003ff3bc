#include <algorithm>
#include <cmath>

#include "nn/check.h"
#include "nn/elementwise.h"
#include "nn/rows.h"
#include "polyhead/models/sentence_model.h"

namespace polyhead::models {

void sentence_embedding(ConstTensorView hidden, ConstTensorView attend_keys, TensorView out) {
  constexpr const char* kOperation = "sentence_embedding";
  require(hidden && hidden.rank() >= 2, kOperation, ": hidden is ", hidden.shape(), "; it must be [*,T,E]");
  const int leading = hidden.rank() - 2;
  Shape pooled = hidden.shape();
  pooled.erase(leading);
  nn::require_shape(kOperation, {"out", out}, pooled);
  require(is_floating(hidden.dtype()) && is_floating(out.dtype()), kOperation, ": hidden is ", hidden.dtype(), " and out ", out.dtype(),
          "; both must be floating");
  if (attend_keys) nn::require_exactly(kOperation, {"attend_keys", attend_keys}, hidden.shape().first(leading + 1), DType::boolean);
  nn::require_separate(kOperation, {"out", out}, {{"hidden", hidden}, {"attend_keys", attend_keys}});

  Shape one = hidden.shape();
  one[-2] = 1;
  Tensor mean(DType::f64, one);
  nn::reduce_positions(hidden, attend_keys, nn::Reduce::mean, mean, nullptr);
  const nn::Rows<double> rows(mean.view());
  for (std::int64_t text = 0; text < rows.count(); ++text) {
    double squares = 0;
    for (std::int64_t e = 0; e < one[-1]; ++e) squares += rows.at(text, e) * rows.at(text, e);
    const double norm = std::max(std::sqrt(squares), 1e-12);
    for (std::int64_t e = 0; e < one[-1]; ++e) rows.at(text, e) /= norm;
  }
  copy(mean.view().select(-2, 0), out);
}

}  // namespace polyhead::models
