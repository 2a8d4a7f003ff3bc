// An independent implementation of attention, with which tests compare the library. It computes whole matrices in long double, decides the mask for each pair
// (query, key) separately, and computes gradients with the full Jacobian of the softmax.
#pragma once

#include <cmath>
#include <vector>

#include "polyhead/sdpa.h"
#include "support/compare.h"

namespace polyhead::test {

using Real = long double;
using Matrix = std::vector<Real>;  // row major, whatever its rank

// A problem as full matrices: the leading dimensions are merged into B, and every tensor that broadcasts is expanded.
struct FullMatrices {
  std::int64_t batch = 1, heads = 0, kv_heads = 0, queries = 0, keys = 0, qk_width = 0, v_width = 0;
  Matrix q, k, v, d_out;   // [B,N,T,H] [B,K,S,H] [B,K,S,V] [B,N,T,V]
  Matrix bias, drop;       // [B,N,T,S]: the number added to each score; the factor by which dropout multiplies each p
  Matrix sink;             // [B,N,T]; -inf without a sink
  std::vector<bool> keep;      // [B,N,T,S]
  std::vector<bool> together;  // [T,S]: true if query and key belong to the same document
  Real scale = 1, softcap = 0;
  EmptyRows empty_rows = EmptyRows::zero;
};

struct FullResults {
  Matrix out, lse;                           // [B,N,T,V] [B,N,T]
  Matrix scaled, capped, score, p, dropped;  // [B,N,T,S]
  Matrix d_q, d_k, d_v, d_score;             // d_q, d_k and d_v have the shapes of q, k and v; d_score has [B,N,T,S]
  Matrix d_sink;                             // [B,N,T]
};

Matrix to_matrix(ConstTensorView view);

Tensor to_tensor(const Matrix& matrix, const Shape& shape);

Shape pairs_shape(ConstTensorView q, ConstTensorView k);

// Converts block lists to a boolean tensor [*,N,T,S], true where the pair (query, key) lies in a listed block.
Tensor listed_pairs(const BlockLists& blocks, const Shape& pairs);

// Decides whether a mask allows query t of sequence b and head n to attend to key s.
class PairRule {
 public:
  PairRule(const Mask& mask, const Shape& pairs);

  bool same_document(std::int64_t t, std::int64_t s) const { return number_of(query_offsets_, t) == number_of(key_offsets_, s); }

  __extension__ using Wide = __int128;

  // Returns s - t - offset, which is positive right of the diagonal. The offset depends on the sequence b (diagonal_offsets) or on the document of t and
  // s.
  Wide distance(std::int64_t b, std::int64_t t, std::int64_t s, const Diagonal& d) const;

  bool keeps(std::int64_t b, std::int64_t t, std::int64_t s, std::size_t pair) const;

 private:
  static std::size_t number_of(const std::vector<double>& offsets, std::int64_t i);
  static std::int64_t start_of(const std::vector<double>& offsets, std::int64_t i);
  static std::int64_t end_of(const std::vector<double>& offsets, std::int64_t i, std::int64_t all);

  const Mask& mask_;
  std::int64_t queries_, keys_;
  std::vector<double> dense_, listed_, key_mask_, starts_, lengths_, query_offsets_, key_offsets_;
  Tensor diagonal_offsets_;
  bool start_per_query_ = false, length_per_query_ = false;
};

// Returns T5's bucket of distance x, found by counting the bucket boundaries between distance 0 and x.
std::int64_t naive_bucket(Real x, const RelativeBias& bias);

// The relative bias of a pair (query, key): `factor` times slopes[n] or times element (n, bucket) of the table.
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
