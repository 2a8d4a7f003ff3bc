// Attention maps show what each head attends to. They are computed from q and k, row by row, with the options of the forward pass, and need
// no [T,S] memory besides their outputs. p[b,n,t,s] = exp(score[b,n,t,s] - log sum_s exp(score[b,n,t,s])); the log of the sum is computed
// again, because a stored float32 lse is off by 1e-3 at scores of 1e4. With sink logits the log of the sum includes exp(sink): a row of p sums to
// 1 - exp(sink - lse), and top keys, statistics and pooled maps are those of the keys, without the sink.
#pragma once

#include <cstdint>
#include <span>

#include "polyhead/sdpa.h"

#pragma GCC visibility push(default)
namespace polyhead {

struct MapsInput {
  ConstTensorView q;  // [*,N,T,H]
  ConstTensorView k;  // [*,K,S,H]  the dtypes of SdpaForward::k
  ConstTensorView k_scale = {};  // [*,K,S]  of an int8 k, as SdpaForward::k_scale
};

// Which value of the formula in sdpa.h a map holds.
enum class MapValue : std::uint8_t {
  scaled_score,  // scale <q,k>, for masked pairs too
  capped_score,  // after softcap, for masked pairs too
  score,         // after the bias; -inf where masked
  probability,   // before dropout; 0 where masked
  dropped,       // after dropout, as it multiplies v
};

// The maps of all queries. out [*,N,T,S], any floating dtype.
void attention_map(const MapsInput& input, TensorView out, const SdpaOptions& options = {}, MapValue value = MapValue::probability);

// The maps of chosen queries. out [*,N,R,S] for R = queries.size(); each query in [0,T).
void attention_map_rows(const MapsInput& input, std::span<const std::int64_t> queries, TensorView out, const SdpaOptions& options = {},
                    MapValue value = MapValue::probability);

// The k keys with the largest probability, largest first; of equal ones the smaller index first. k <= S.
// probability [*,N,T,k] floating, key [*,N,T,k] int64.
void attention_top_keys(const MapsInput& input, TensorView probability, TensorView key, const SdpaOptions& options = {});

// Averages over the rows that are not empty; 0 if all are. Positions s and t count in each document. Each view is [*,N] floating and
// optional.
struct HeadStatistics {
  TensorView entropy = {};      // -sum_s p log p, in nats
  TensorView largest = {};      // max_s p
  TensorView distance = {};     // sum_s p |s - t|, in positions
  TensorView first_key = {};    // p of key 0
  TensorView previous_key = {}; // p of key t - 1
  TensorView same_key = {};     // p of key t
  TensorView next_key = {};     // p of key t + 1
};
void attention_statistics(const MapsInput& input, const HeadStatistics& statistics, const SdpaOptions& options = {});

// Mean probability over blocks: out [*,N,h,w] with h <= T, w <= S. Block (i,j) covers queries [i T/h, (i+1) T/h) and
// keys [j S/w, (j+1) S/w).
void attention_pooled_map(const MapsInput& input, TensorView out, const SdpaOptions& options = {});

}  // namespace polyhead
#pragma GCC visibility pop
