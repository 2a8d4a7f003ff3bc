// An independent implementation of attention: whole matrices in long double, every mask rule decided pair by pair, and the softmax differentiated
// through its full Jacobian.
#pragma once

#include <cmath>
#include <vector>

#include "polyhead/sdpa.h"
#include "support/compare.h"

namespace polyhead::test {

using Real = long double;
using Matrix = std::vector<Real>;  // row major, whatever its rank

// One problem with its leading dimensions folded into B and everything that broadcasts written out.
struct FullMatrices {
  std::int64_t batch = 1, heads = 0, kv_heads = 0, queries = 0, keys = 0, qk_width = 0, v_width = 0;
  Matrix q, k, v, d_out;   // [B,N,T,H] [B,K,S,H] [B,K,S,V] [B,N,T,V]
  Matrix bias, drop;       // [B,N,T,S]: added to scores, multiplied with probabilities
  Matrix sink;             // [B,N,T]; -inf without a sink
  std::vector<bool> keep;      // [B,N,T,S]
  std::vector<bool> together;  // [T,S]: query and key of one document
  Real scale = 1, softcap = 0;
  EmptyRows empty_rows = EmptyRows::zero;
};

struct FullResults {
  Matrix out, lse;                           // [B,N,T,V] [B,N,T]
  Matrix scaled, capped, score, p, dropped;  // [B,N,T,S]
  Matrix d_q, d_k, d_v, d_score;             // as q, k, v; [B,N,T,S]
  Matrix d_sink;                             // [B,N,T]
};

Matrix to_matrix(ConstTensorView view);

Tensor to_tensor(const Matrix& matrix, const Shape& shape);

Shape pairs_shape(ConstTensorView q, ConstTensorView k);

// Writes out block lists as bool [*,N,T,S], true where the pair lies in a listed block.
Tensor listed_pairs(const BlockLists& blocks, const Shape& pairs);

// Tells whether a mask lets query t of sequence b and head n attend to key s.
class PairRule {
 public:
  PairRule(const Mask& mask, const Shape& pairs);

  bool same_document(std::int64_t t, std::int64_t s) const { return number_of(query_offsets_, t) == number_of(key_offsets_, s); }

  __extension__ using Wide = __int128;

  // Returns the distance in row t from the diagonal to key s. Sequence b, or the document of t and s, may have a diagonal of its own.
  Wide distance(std::int64_t b, std::int64_t t, std::int64_t s, const Diagonal& d) const;

  bool keeps(std::int64_t b, std::int64_t t, std::int64_t s, std::size_t pair) const;

 private:
  static std::size_t number_of(const std::vector<double>& offsets, std::int64_t i);
  static std::int64_t start_of(const std::vector<double>& offsets, std::int64_t i);
  static std::int64_t end_of(const std::vector<double>& offsets, std::int64_t i, std::int64_t all);

  const Mask& mask_;
  std::int64_t queries_, keys_;
  std::vector<double> dense_, listed_, key_mask_, lengths_, query_offsets_, key_offsets_;
  Tensor diagonal_offsets_;
  bool length_per_query_ = false;
};

// Finds T5's bucket by counting the bucket boundaries between the diagonal and the key.
std::int64_t naive_bucket(Real x, const RelativeBias& bias);

// The relative bias of a pair: `factor` times element (n, bucket) of the slopes [N] or the table.
struct RelativePair {
  Real factor;
  std::int64_t bucket;
};

RelativePair relative_pair(const PairRule& rule, const SdpaOptions& options, std::int64_t b, std::int64_t t, std::int64_t s);

FullMatrices full_matrices(ConstTensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView d_out,
                                  const SdpaOptions& options);

// Returns the gradient of the slopes [N] or the table [N,buckets], given the gradient of the scores.
Tensor relative_gradient(const FullMatrices& m, const Matrix& d_score, const SdpaOptions& options, const Shape& pairs);

FullResults naive_attention(const FullMatrices& m);

}  // namespace polyhead::test
