#include "support/gradients.h"

namespace polyhead::test {

double weighted_sum(ConstTensorView y, ConstTensorView weights) {
  const std::vector<double> a = to_doubles(y), b = to_doubles(weights);
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Tensor central_differences(const std::function<double()>& loss, TensorView leaf) {
  Tensor result(DType::f64, leaf.shape());
  double* slope = result.data<double>();
  double* value = leaf.data<double>();
  for_each_offset<1>(leaf.shape(), {leaf.strides()}, [&](const auto& at) {
    double& x = value[at[0]];
    const double kept = x;
    x = kept + kStep;
    const double above = loss();
    x = kept - kStep;
    const double below = loss();
    x = kept;
    *slope++ = (above - below) / (2 * kStep);
  });
  return result;
}

void expect_gradients(const std::function<double()>& loss, const std::vector<Leaf>& leaves) {
  std::vector<Tensor> differences;
  double largest = 0;
  for (const Leaf& leaf : leaves) {
    differences.push_back(central_differences(loss, leaf.value));
    largest = std::max(largest, largest_magnitude(differences.back()));
  }
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const double scale = std::max(largest_magnitude(differences[i]), largest / 100);
    EXPECT_TRUE(near(leaves[i].gradient, differences[i], kGradientTolerance * scale)) << "gradient of " << leaves[i].name;
  }
}

}  // namespace polyhead::test
