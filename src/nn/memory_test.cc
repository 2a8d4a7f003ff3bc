// Tests that attention with pair bias never allocates the whole bias [*,N,T,S]. Besides inputs and outputs it may only allocate one block of the bias, and
// memory for some pieces of z.
#include <gtest/gtest.h>

#include "polyhead/nn/pair_bias.h"
#include "support/peak_memory.h"
#include "support/random.h"
#include "support/thread_count.h"

namespace polyhead::nn {
namespace {

using test::peak_of;
using test::Random;

constexpr std::int64_t kHeads = 16, kKeys = 128, kWidth = 8, kPairWidth = 16, kBlock = 2 << 20, kPiece = 256 << 10;

// The peaks of allocated memory in a forward and a backward pass, and the size of the whole bias, in bytes. z is one row that all queries and structures share
// through strides of 0.
struct Peaks {
  std::int64_t forward, backward, bias;
};

Peaks peaks_of(std::int64_t structures, std::int64_t queries) {
  Random random(1);
  const PairBias pair({.pair_width = kPairWidth, .heads = kHeads, .seed = 1});
  const Tensor row = random.tensor(DType::f32, {1, 1, kKeys, kPairWidth});
  const Shape of_q{structures, kHeads, queries, kWidth}, of_k{structures, kHeads, kKeys, kWidth};
  const Tensor q = random.tensor(DType::f32, of_q), k = random.tensor(DType::f32, of_k), v = random.tensor(DType::f32, of_k);
  Tensor out(DType::f32, of_q), lse(DType::f32, of_q.first(3)), d_q(DType::f32, of_q), d_k(DType::f32, of_k), d_v(DType::f32, of_k);
  PairBias d_pair = zeros_like(pair);
  const PairBiasSdpa input{.q = q, .k = k, .v = v, .z = row.view().expand({structures, queries, kKeys, kPairWidth})};
  return {.forward = peak_of([&] { pair_bias_sdpa_forward(pair, input, out, lse); }),
          .backward = peak_of([&] { pair_bias_sdpa_backward(pair, input, out, lse, out, {.q = d_q, .k = d_k, .v = d_v, .parameters = &d_pair}); }),
          .bias = structures * kHeads * queries * kKeys * 4};
}

TEST(PairBiasMemory, HoldsOneBlockAndNeverTheWholeBias) {
  const test::ThreadCount one(1);
  peaks_of(1, 8);  // The first call of a process also allocates a description of the machine, and keeps it, so it is not measured.
  constexpr std::int64_t kSdpa = 2 << 20;  // an upper bound on the bytes that attention itself allocates for heads of this width
  for (const auto& [structures, queries] : {std::pair<std::int64_t, std::int64_t>{1, 2048}, {16, 128}, {2, 4096}}) {
    const Peaks peaks = peaks_of(structures, queries);
    const std::int64_t pieces = structures * queries * kKeys * kPairWidth * 4 / kPiece + structures, sums = pieces * (kHeads + 2) * kPairWidth * 4;
    EXPECT_GE(peaks.bias, 8 * kBlock);
    EXPECT_LT(peaks.forward, kBlock + 2 * kPiece + kSdpa) << structures << " x " << queries;
    // The backward pass allocates a block of the bias and a block of the bias's gradient, memory for pieces of both, and sums for each piece.
    EXPECT_LT(peaks.backward, 2 * kBlock + 4 * kPiece + 2 * sums + 2 * kSdpa) << structures << " x " << queries;
  }
}

}  // namespace
}  // namespace polyhead::nn
