// A step of the score that the caller writes: sdpa calls a function with tiles of scores while they are in the first-level cache. No tensor of
// all pairs is made. score_function.h makes the two functions from lambdas.
//
//   score = softcap(rule(scale <q,k>)) + bias, then masks        d_x = backward(d_score softcap'(rule(x))), x = scale <q,k>
//
// The rule has the place of score_mod of FlexAttention (Dong et al. 2024): it sees scaled scores, before softcap, bias and masks.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace polyhead {

// Scores of some queries of a head with some keys: row i, column j is the score of query first_query + i and key first_key + j. These are rows of q and k,
// also in a packed sequence of documents. Elements of a row after the first `keys` may not be written.
struct ScoreTile {
  void* scores = nullptr;      // [rows, keys], rows row_stride elements apart: double if `float64`, else float
  bool float64 = false;        // true for float64 tensors; and on the backend `reference`, which computes in float64
  std::int64_t rows = 0, keys = 0, row_stride = 0;
  std::int64_t first_query = 0, first_key = 0;
  std::int64_t batch = 0, head = 0;  // b counts the leading dimensions in row-major order; query head n
};

// Both functions are called from several threads at once, in no particular order and with tiles of any size. They may not throw. The new score of
// a pair may depend on its old score, b, n, t and s alone: results then have the same bits for any number of threads if the functions
// compute each element alike wherever it lies in a tile. Tiles hold masked pairs too, whose scores may be NaN; what becomes of them has no effect.
struct ScoreRule {
  // Replaces the scores.
  void (*forward)(const ScoreTile& tile, const void* data) = nullptr;
  // On entry tile.scores holds the gradients of the new scores, and `before` the old scores, in the same type and with the same row_stride; masked pairs
  // have 0 in both. Replaces tile.scores by the gradients of the old scores, and adds the gradients of the numbers that the rule reads to
  // sums [gradient_count] of this head, unless sums is nullptr. A rule without this function has no gradient, and sdpa_backward refuses it.
  void (*backward)(const ScoreTile& tile, const void* before, double* sums, const void* data) = nullptr;
  const void* data = nullptr;  // passed to forward and backward
  // How many numbers the rule reads that have gradients. SdpaBackward::d_score_rule [N, gradient_count] receives them, for each query head.
  std::int64_t gradient_count = 0;

  explicit operator bool() const { return forward != nullptr; }
};

}  // namespace polyhead
#pragma GCC visibility pop
