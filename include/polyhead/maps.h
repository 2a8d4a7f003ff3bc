// Attention maps: a second operation over q and k that shows what the heads attend to, computed row by row with the options of the forward
// pass. It needs no [T,S] memory beyond its outputs. p[b,n,t,s] = exp(score[b,n,t,s] - log sum_s exp(score[b,n,t,s])); that sum is computed
// again, because a stored float32 lse is off by 1e-3 at scores of 1e4.
#pragma once

#include <cstdint>
#include <span>

#include "polyhead/sdpa.h"

namespace polyhead {

struct MapsInput {
  ConstTensorView q;  // [*,N,T,H]
  ConstTensorView k;  // [*,K,S,H]
};

// At which point of the formula a map is read.
enum class MapValue : std::uint8_t {
  scaled_score,  // scale <q,k>, for masked pairs too
  capped_score,  // after softcap, for masked pairs too
  score,         // after the bias; -inf where masked
  probability,   // before dropout; 0 where masked
  dropped,       // after dropout, as it multiplies v
};

// All maps. out [*,N,T,S], any floating dtype.
void attention_map(const MapsInput& input, TensorView out, const SdpaOptions& options = {}, MapValue value = MapValue::probability);

// The maps of chosen queries. out [*,N,R,S] for R = queries.size(); each query in [0,T).
void attention_map_rows(const MapsInput& input, std::span<const std::int64_t> queries, TensorView out, const SdpaOptions& options = {},
                    MapValue value = MapValue::probability);

// The keys with the largest probability, largest first, ties to the smaller index. probability [*,N,T,k] floating and key [*,N,T,k] int64;
// k <= S.
void attention_top_keys(const MapsInput& input, TensorView probability, TensorView key, const SdpaOptions& options = {});

// Averages over the rows that are not empty, with positions counted in each document; each view is [*,N] floating and optional. A head without such a row gives 0.
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

// Mean probability over blocks: out [*,N,h,w] with h <= T, w <= S; block (i,j) covers queries [i T/h, (i+1) T/h) and keys [j S/w, (j+1) S/w).
void attention_pooled_map(const MapsInput& input, TensorView out, const SdpaOptions& options = {});

}  // namespace polyhead
