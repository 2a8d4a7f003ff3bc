// Compares gradients with central differences in float64.
#pragma once

#include <functional>

#include "support/compare.h"

namespace polyhead::test {

struct Leaf {
  std::string name;
  TensorView value;          // a float64 input of the loss; central_differences() changes each element by +-step and restores it
  ConstTensorView gradient;  // the gradient to check
};

inline constexpr double kStep = 1e-6;
inline constexpr double kGradientTolerance = 1e-6;

// Returns sum_i weights[i] y[i]: a loss whose gradient by y is `weights`.
double weighted_sum(ConstTensorView y, ConstTensorView weights);

// Returns (loss(x + step) - loss(x - step)) / (2 step) for every element x of a leaf.
Tensor central_differences(const std::function<double()>& loss, TensorView leaf);

// Checks that the error of each gradient is at most 1e-6 times the leaf's largest gradient or, if that is larger, 1e-6 times a hundredth of the largest
// gradient of all leaves. The latter is for leaves with a gradient near zero (the bias of a key projection), where rounding errors of the loss dominate.
void expect_gradients(const std::function<double()>& loss, const std::vector<Leaf>& leaves);

// Returns the parameters of a module as leaves. `gradients` is a module of the same type that holds their gradients.
template <class Module>
std::vector<Leaf> parameter_leaves(Module& module, Module& gradients) {
  std::vector<std::pair<std::string, TensorView>> values, slopes;
  module.visit([&](const std::string& name, Tensor& tensor) { values.emplace_back(name, tensor); });
  gradients.visit([&](const std::string& name, Tensor& tensor) { slopes.emplace_back(name, tensor); });
  std::vector<Leaf> leaves;
  EXPECT_EQ(values.size(), slopes.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i].first, slopes[i].first);
    leaves.push_back({values[i].first, values[i].second, slopes[i].second});
  }
  return leaves;
}

}  // namespace polyhead::test
