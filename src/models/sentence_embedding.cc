#include <algorithm>
#include <cmath>
#include <numeric>

#include "nn/check.h"
#include "nn/elementwise.h"
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
  double* const end = mean.data<double>() + mean.numel();
  for (double *row = mean.data<double>(), *next = row; row != end; row = next) {
    next = row + one[-1];
    const double norm = std::max(std::sqrt(std::inner_product(row, next, row, 0.0)), 1e-12);
    for (double* e = row; e != next; ++e) *e /= norm;
  }
  copy(mean.view().select(-2, 0), out);
}

}  // namespace polyhead::models
