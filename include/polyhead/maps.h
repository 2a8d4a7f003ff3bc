// Attention maps show what each head attends to. They are computed from q and k, row by row, with the options of the forward pass, in
// O(T + S) memory besides their outputs; the bits do not depend on the number of threads.
//   p[b,n,t,s] = exp(score[b,n,t,s] - log sum_s exp(score[b,n,t,s]))
// The log of the sum is computed again, because a stored float32 lse is off by 1e-3 at scores of 1e4. With sink logits the sum includes exp(sink), so a
// row of p sums to 1 - exp(sink - lse). The sink is no column of a map: top keys, statistics and pooled maps are computed from the p of the keys alone.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "polyhead/sdpa.h"

#pragma GCC visibility push(default)
namespace polyhead {

struct MapsInput {
  ConstTensorView q;  // [*,N,T,H]
  ConstTensorView k;  // [*,K,S,H]  any dtype that SdpaForward::k may have
  ConstTensorView k_scale = {};  // [*,K,S]  scales of an int8 k, as SdpaForward::k_scale
  // The calling thread calls progress after every few hundred rows, and at the end with done = total. If progress throws, the
  // operation ends and its outputs are unspecified.
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};
};

// The value that an element of a map holds. The formulas are at the beginning of sdpa.h. The values are listed in the order of the computation: each includes
// the steps of the values above it.
enum class MapValue : std::uint8_t {
  scaled_score,  // scale <q,k>, for masked pairs too
  capped_score,  // the score after the score rule and softcap, for masked pairs too
  score,         // the score after the bias; -inf where masked
  probability,   // the attention weight before dropout; 0 where masked
  dropped,       // the attention weight after dropout, which multiplies v
};

// Writes the maps of all queries. out [*,N,T,S], any floating dtype.
void attention_map(const MapsInput& input, TensorView out, const SdpaOptions& options = {}, MapValue value = MapValue::probability);

// Writes the rows of chosen queries. out [*,N,R,S] for R = queries.size(); each query in [0,T).
void attention_map_rows(const MapsInput& input, std::span<const std::int64_t> queries, TensorView out, const SdpaOptions& options = {},
                    MapValue value = MapValue::probability);

// Writes the rows of chosen queries at the columns of chosen keys: out [*,N,R,C] for R = queries.size() and C = keys.size(). Consecutive queries and
// consecutive keys select a rectangle of the map. Elements equal those of attention_map() up to one rounding.
void attention_map_part(const MapsInput& input, std::span<const std::int64_t> queries, std::span<const std::int64_t> keys, TensorView out,
                        const SdpaOptions& options = {}, MapValue value = MapValue::probability);

// Writes a band of W diagonals: out [*,N,T,W], where element i of query t is the probability of key t + first + i, or 0 if there is no such key.
// Positions of queries and keys are counted from the start of each document.
void attention_windows(const MapsInput& input, std::int64_t first, TensorView out, const SdpaOptions& options = {});

// Finds for each query the k keys with the largest probability, largest first. Of keys with equal probability the key with the smaller index comes first. k <= S.
// probability [*,N,T,k] floating, key [*,N,T,k] int64.
void attention_top_keys(const MapsInput& input, TensorView probability, TensorView key, const SdpaOptions& options = {});

// Each statistic is the mean over a head's rows that are not empty; 0 if all rows are empty. Positions s and t are counted from the start of each
// document. Each view is [*,N] floating and optional.
struct HeadStatistics {
  TensorView entropy = {};      // -sum_s p log p, in nats
  TensorView largest = {};      // max_s p
  TensorView distance = {};     // sum_s p |s - t|, in positions
  TensorView first_key = {};    // p[t, 0]
  TensorView previous_key = {}; // p[t, t - 1]
  TensorView same_key = {};     // p[t, t]
  TensorView next_key = {};     // p[t, t + 1]
};
void attention_statistics(const MapsInput& input, const HeadStatistics& statistics, const SdpaOptions& options = {});

// How much each query attends to each of M sets of keys: out [*,N,T,M], the sum of the probabilities of the keys of a set. key_sets is boolean: [S]
// for one set, or a tensor that broadcasts to [*,M,S]. A key may be in several sets.
void attention_key_mass(const MapsInput& input, ConstTensorView key_sets, TensorView out, const SdpaOptions& options = {});

// How much attention each key receives: out [*,N,S], the sum over all queries of p[t,s].
void attention_key_sums(const MapsInput& input, TensorView out, const SdpaOptions& options = {});

// How a pooled map reduces each block of attention weights to one number.
enum class Pooling : std::uint8_t { mean, sum, largest };

// Reduces the maps to blocks: out [*,N,h,w] with h <= T, w <= S. Block (i,j) covers queries [i T/h, (i+1) T/h) and
// keys [j S/w, (j+1) S/w).
void attention_pooled_map(const MapsInput& input, TensorView out, const SdpaOptions& options = {}, Pooling pooling = Pooling::mean);

// How differently two heads attend: out [*,N,N], the Jensen-Shannon divergence (Lin 1991) of a query's rows in the two heads, averaged over the queries whose
// rows are not empty in either head; 0 if there is no such query. The divergence lies between 0 (equal rows) and log 2 nats (no key in common). A sink counts as
// one more key.
void attention_divergence(const MapsInput& input, TensorView out, const SdpaOptions& options = {});

// Attention rollout (Abnar and Zuidema 2020): how much each input position contributes to a position after several layers of
// self-attention, if only attention and the residual connection mix positions. A_l = residual I + (1 - residual) (mean over heads of p_l),
// with each row divided by its sum; out [*,R,T] = rows `queries` of A_L ... A_1. layers[0] is A_1. All layers have the same T = S and the same
// options. Memory is O(R T). If R >= T/2, or if a score rule has no backward function, the memory is a matrix [T,T] and 64 to 256 rows of each head's map.
void attention_rollout(std::span<const MapsInput> layers, std::span<const std::int64_t> queries, TensorView out, const SdpaOptions& options = {},
                       double residual = 0.5);

}  // namespace polyhead
#pragma GCC visibility pop
