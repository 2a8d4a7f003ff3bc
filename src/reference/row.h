// Computes one row of the score matrix and its softmax. The forward pass, the backward pass and the maps use it.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "problem/problem.h"

namespace polyhead::reference {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Row {
  std::vector<double> scaled;        // scale <q, k[s]>; also computed for masked keys
  std::vector<double> capped;        // softcap(rule(scaled))
  std::vector<double> score;         // capped + bias; -infinity for masked keys
  std::vector<std::uint8_t> attend;  // 1 if query t may attend to key s, else 0
  std::vector<double> p;             // softmax over the keys with attend[s] = 1; 0 for all other keys
  std::vector<double> dropped;       // drop(p)
  std::vector<std::uint8_t> keep_bits;
  double sink = 0;       // sink logit; -infinity if there is no sink
  double lse = 0;
  bool empty = false;    // true if every score is -infinity; then out = 0, and the scores have no gradient
  bool uniform = false;  // true if EmptyRows::uniform applies to the row: its scores are constants and have no gradient
};

// Computes rows of the map of head (b, n). Keys are stored transposed [H,S], so that a row of scores is the sum over h of q[h] * (row h of the keys).
class RowMaker {
 public:
  // k_scale holds the scales of an int8 k; absent for other dtypes.
  RowMaker(const Problem& problem, ConstTensorView q, ConstTensorView k, ConstTensorView k_scale, std::int64_t b, std::int64_t n);

  void scores(std::int64_t t, Row& row) const;   // sets all members except p, lse, dropped and keep_bits
  void softmax(Row& row) const;                  // sets p and lse from score and sink
  void softmax(double lse, Row& row) const;      // sets p from score and from the given lse
  void dropout(std::int64_t t, Row& row) const;  // sets `dropped` from p
  double dropout_factor(const Row& row, std::int64_t s) const;  // returns the factor by which dropout() multiplied p[s]

 private:
  const Problem& problem_;
  ConstTensorView q_;
  std::int64_t b_, n_;
  std::vector<double> keys_;  // [H,S]
};

// These functions return a head as float64: row-major [rows, columns], or transposed. scale [*,K,S,1] holds the scales of int8 rows; absent for other dtypes.
std::vector<double> load_head(ConstTensorView view, ConstTensorView scale, std::int64_t b, std::int64_t n);
std::vector<double> load_head_transposed(ConstTensorView view, ConstTensorView scale, std::int64_t b, std::int64_t n);
std::vector<double> load_row(ConstTensorView view, std::int64_t b, std::int64_t n, std::int64_t row);
void store_row(TensorView view, std::int64_t b, std::int64_t n, std::int64_t row, const double* values);

// Returns the ScoreTile with which the score rule is called for a row of scores [S].
ScoreTile score_tile(const Problem& problem, std::int64_t b, std::int64_t n, std::int64_t t, double* scores);

// Adds factor * values[i] to sums[i].
inline void add_scaled(std::int64_t count, double factor, const double* values, double* sums) {
  for (std::int64_t i = 0; i < count; ++i) sums[i] += factor * values[i];
}

}  // namespace polyhead::reference
