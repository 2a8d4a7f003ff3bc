// Computes the tangent of one row of scores. jvp and backward_backward use it.
#pragma once

#include <vector>

#include "reference/row.h"

namespace polyhead::reference {

struct RowTangent {
  std::vector<double> scaled;  // tangent of Row::scaled; 0 for masked keys
  std::vector<double> score;   // tangent of Row::score; 0 where masked, and 0 in uniform rows, whose scores are constants
  double sink = 0;
  double lse = 0;              // tangent of lse: sum_s p score + p_sink sink
};

// Computes tangents of rows of head (b, n). Keys and their tangents are stored transposed.
class TangentMaker {
 public:
  TangentMaker(const Problem& problem, const Tangents& tangents, ConstTensorView q, ConstTensorView k, std::int64_t b, std::int64_t n);
  void row(std::int64_t t, const Row& row, RowTangent& tangent) const;  // `row` must contain scores and softmax

 private:
  const Problem& problem_;
  const Tangents& tangents_;
  ConstTensorView q_;
  std::int64_t b_, n_;
  std::vector<double> keys_, key_tangents_;  // [H,S]
};

// These functions return a row or a head of a tangent, or zeros if the tangent is absent.
std::vector<double> load_row_or_zeros(ConstTensorView view, std::int64_t b, std::int64_t n, std::int64_t row, std::int64_t width);
std::vector<double> load_head_or_zeros(ConstTensorView view, std::int64_t b, std::int64_t n, std::size_t size);

// The derivatives of the softcap with respect to its argument, computed from a capped score. `slope` is the first derivative, `curvature` the second.
struct CapSlopes {
  double slope = 1, curvature = 0;
  CapSlopes(double capped, double softcap);
};

}  // namespace polyhead::reference
