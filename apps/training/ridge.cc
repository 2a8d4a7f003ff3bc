#include "training/ridge.h"

#include <numeric>

namespace polyhead::training {
namespace {

double dot(std::span<const double> a, std::span<const double> b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

}  // namespace

Ridge fit_ridge(std::span<const SparseRow> rows, std::size_t columns, std::span<const double> wanted, const RidgeConfig& config) {
  // Conjugate gradients on (X'X + penalty) w = X'y. The last column is the constant 1, which has no penalty.
  const auto product = [&](const SparseRow& row, const std::vector<double>& w) {
    double sum = w[columns];
    for (const SparseEntry& entry : row) sum += entry.value * w[entry.column];
    return sum;
  };
  const auto add = [&](const SparseRow& row, double factor, std::vector<double>& w) {
    for (const SparseEntry& entry : row) w[entry.column] += factor * entry.value;
    w[columns] += factor;
  };
  std::vector<double> w(columns + 1), residual(columns + 1);
  for (std::size_t i = 0; i < rows.size(); ++i) add(rows[i], wanted[i], residual);
  std::vector<double> direction = residual;
  double squared = dot(residual, residual);
  const double enough = squared * 1e-8;
  for (std::int64_t step = 0; step < config.iterations && squared > enough; ++step) {
    std::vector<double> image(columns + 1);
    for (const SparseRow& row : rows) add(row, product(row, direction), image);
    for (std::size_t i = 0; i < columns; ++i) image[i] += config.penalty * direction[i];
    const double length = squared / dot(direction, image), before = squared;
    for (std::size_t i = 0; i <= columns; ++i) w[i] += length * direction[i], residual[i] -= length * image[i];
    squared = dot(residual, residual);
    for (std::size_t i = 0; i <= columns; ++i) direction[i] = residual[i] + squared / before * direction[i];
  }
  const double constant = w.back();
  w.pop_back();
  return {std::move(w), constant};
}

}  // namespace polyhead::training
