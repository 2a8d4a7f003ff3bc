// A score rule is a function of the caller that changes scores. sdpa_forward() calls it with tiles of scores while they are in the first-level cache, so no
// [T,S] tensor is allocated. score_function.h makes a rule's functions `forward` and `backward` from lambdas.
//
//   score = softcap(rule(scale <q,k>)) + bias, then masks        d_x = backward(d_score softcap'(rule(x))), x = scale <q,k>
//
// A rule does what score_mod of FlexAttention does (Dong et al. 2024): its input is scaled scores, before softcap, bias and masks.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace polyhead {

// The scores of some queries of a head with some keys: row i, column j is the score of query first_query + i and key first_key + j. Both positions are rows of
// q and k; with packed documents they are not counted from the start of a document. A rule may only write the first `keys` elements of a row.
struct ScoreTile {
  void* scores = nullptr;      // [rows, keys], rows row_stride elements apart: double if `float64`, else float
  bool float64 = false;        // true for float64 tensors, and for every call of the backend `reference`, which computes in float64
  std::int64_t rows = 0, keys = 0, row_stride = 0;
  std::int64_t first_query = 0, first_key = 0;
  std::int64_t batch = 0, head = 0;  // batch: the sequence, as the row-major index in the leading dimensions. head: the query head.
};

// forward and backward are called from several threads at once, in any order and with tiles of any size. They may not throw. The new score of a pair may depend
// only on its old score, sequence, head, query and key. Results have the same bits for any number of threads if the functions compute an element in the same
// way wherever it lies in a tile. Tiles also hold masked pairs: their scores may be NaN, and their new values have no effect.
struct ScoreRule {
  // Replaces the scores in a tile by the new scores.
  void (*forward)(const ScoreTile& tile, const void* data) = nullptr;
  // On entry tile.scores holds the gradients of the new scores, and `before` holds the old scores, in the same type and with the same row_stride. Masked pairs
  // have gradient 0 and, unless keeps_zeros is set, old score 0. The function replaces tile.scores by the gradients of the old scores. Unless sums is nullptr,
  // it adds the gradients of the numbers that the rule reads to sums [gradient_count] of this head. A rule without this function has no gradient, and
  // sdpa_backward() refuses it.
  void (*backward)(const ScoreTile& tile, const void* before, double* sums, const void* data) = nullptr;
  const void* data = nullptr;  // passed to forward and backward. A rule that has data or a gradient_count, but no forward, is an Error.
  // How many numbers that the rule reads have gradients. SdpaBackward::d_score_rule [N, gradient_count] receives these gradients for each query head.
  std::int64_t gradient_count = 0;
  // Two promises about `backward` that save work in the kernels. keeps_zeros: a gradient of 0 stays 0 and adds nothing to the sums, whatever the old score is;
  // `before` may then hold any number for masked pairs. reads_before = false: `before` may be nullptr.
  bool keeps_zeros = false, reads_before = true;
  // For a rule that masks pairs by the score -infinity, or nullptr. Returns true only if the new scores of all pairs of the tile are -infinity, whatever their old
  // scores are; tile.scores is nullptr. The forward and backward passes skip such blocks of pairs where this changes no result: without softcap, bias and
  // empty_rows, and if the tensors are finite. It may be called from several threads, and may not throw.
  bool (*masks)(const ScoreTile& tile, const void* data) = nullptr;
  bool masks_by_batch = true, masks_by_head = true;  // false: `masks` does not read tile.batch or tile.head, so sequences or heads share its answers

  explicit operator bool() const { return forward != nullptr; }
};

}  // namespace polyhead
#pragma GCC visibility pop
