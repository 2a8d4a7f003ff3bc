// A bias of the scores that depends only on the head and on the distance of key and query (ALiBi, T5). No [T,S] tensor is allocated.
#pragma once

#include <cstdint>
#include <optional>

#include "polyhead/mask.h"
#include "polyhead/named_members.h"
#include "polyhead/tensor.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead {

// The distance of query t and key s is x = s - (t + offset): negative for earlier keys, 0 on the diagonal. The offset is that of the mask's causal or window
// diagonal. If the mask has no such diagonal, `diagonal` gives the offset; by default it is bottom right. Each document has its own diagonal;
// Mask::diagonal_offsets gives each sequence its own offset. Exactly one of slopes and table is given, in the dtype of q or of lse.
struct RelativeBias {
  [[no_unique_address]] NamedMembers named_members = NamedMembers();
  // ALiBi (Press et al. 2022): bias[b,n,t,s] = -slopes[n] |x|. alibi_slopes() computes the slopes of the paper.
  ConstTensorView slopes{};  // [N]

  // T5 (Raffel et al. 2020, section 2.1): bias[b,n,t,s] = table[n, relative_bucket(x, …)]. PyTorch's T5 stores [buckets,N]: pass its transpose.
  ConstTensorView table{};  // [N,buckets]
  bool bidirectional = true;        // Without a table, bidirectional and max_distance must have their defaults, else Error.
  std::int64_t max_distance = 128;

  std::optional<Diagonal> diagonal{};  // If the mask has a causal or window diagonal, `diagonal` must be absent or equal to it.

  explicit operator bool() const { return slopes || table; }
  const ConstTensorView& parameter() const { return slopes ? slopes : table; }
};

// Returns the bucket in [0, buckets) of a distance x. Each direction has D buckets: D = buckets / 2 if bidirectional, else D = buckets. The first D/2 buckets
// hold |x| = 0, 1, ..., D/2 - 1. Each following bucket holds a range of distances; the ranges grow logarithmically up to max_distance, and the last bucket
// holds all longer distances. Keys after the query have the second half of all buckets if bidirectional, else bucket 0. Error unless max_distance > D/2 and
// buckets is at least 2 (if bidirectional, at least 4 and even).
std::int64_t relative_bucket(std::int64_t x, std::int64_t buckets, bool bidirectional, std::int64_t max_distance);

// Returns the ALiBi slopes, float32 [heads] (Press et al. 2022): 2^(-8 i / heads) for i = 1, ..., heads if heads is a power of two. Else the slopes for the
// next smaller power of two, followed by every second slope for the next larger one.
Tensor alibi_slopes(std::int64_t heads);

}  // namespace polyhead
#pragma GCC visibility pop
