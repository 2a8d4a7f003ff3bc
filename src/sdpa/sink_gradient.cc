#include "sdpa/sink_gradient.h"

#include "core/index.h"
#include "core/shared_sums.h"
#include "sdpa/normal_form.h"

namespace polyhead {

void add_up_sink_gradient(ConstTensorView rows, TensorView d_sink) {
  const SharedSums sums(d_sink);
  const ConstTensorView of_rows = rows.select(-1, 0);
  const TensorView to = rows_of_sink(sums.view()).expand(of_rows.shape());
  double* const sum = to.data<double>();
  const double* const row = of_rows.data<double>();
  for_each_offset<2>(of_rows.shape(), {to.strides(), of_rows.strides()}, [&](const auto& at) { sum[at[0]] += row[at[1]]; });
  sums.store();
}

}  // namespace polyhead
