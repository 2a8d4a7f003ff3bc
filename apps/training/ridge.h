// Ridge regression on sparse rows.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace polyhead::training {

struct SparseEntry {
  std::size_t column;
  double value;
};
using SparseRow = std::vector<SparseEntry>;

struct RidgeConfig {
  double penalty = 0.3;          // factor of the sum of squared parameters, which scikit-learn calls alpha; the constant has no penalty
  std::int64_t iterations = 60;  // maximum number of steps of conjugate gradients; they stop earlier when the residual is 1e-4 of the first residual
};

struct Ridge {
  std::vector<double> parameters;  // a parameter for each column
  double constant = 0;
};
// Minimises the sum over rows of (constant + <row, parameters> - wanted)^2, plus the penalty.
Ridge fit_ridge(std::span<const SparseRow> rows, std::size_t columns, std::span<const double> wanted, const RidgeConfig& config);

}  // namespace polyhead::training
