// The tangent of one row of scores: what jvp and backward_backward have in common.
#pragma once

#include <vector>

#include "reference/row.h"

namespace polyhead::reference {

struct RowTangent {
  std::vector<double> scaled;  // of Row::scaled; 0 where masked
  std::vector<double> score;   // of Row::score; 0 where masked and in uniform rows, whose scores are constants
  double sink = 0;
  double lse = 0;              // sum_s p score + p_sink sink
};

// Tangents of head (b, n), with the keys and their tangents transposed.
class TangentMaker {
 public:
  TangentMaker(const Problem& problem, const Tangents& tangents, ConstTensorView q, ConstTensorView k, std::int64_t b, std::int64_t n);
  void row(std::int64_t t, const Row& row, RowTangent& tangent) const;  // row: with scores and softmax

 private:
  const Problem& problem_;
  const Tangents& tangents_;
  ConstTensorView q_;
  std::int64_t b_, n_;
  std::vector<double> keys_, key_tangents_;  // [H,S]
};

// A row or a head of a tangent; zeros if it is absent.
std::vector<double> load_row_or_zeros(ConstTensorView view, std::int64_t b, std::int64_t n, std::int64_t row, std::int64_t width);
std::vector<double> load_head_or_zeros(ConstTensorView view, std::int64_t b, std::int64_t n, std::size_t size);

// The slope of softcap by its argument and the slope of that slope, at a capped score.
struct CapSlopes {
  double first = 1, second = 0;
  CapSlopes(double capped, double softcap);
};

}  // namespace polyhead::reference
