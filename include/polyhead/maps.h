// Attention maps show what each head attends to. These functions compute maps from q and k, row by row, with the options of the forward pass. They need O(T +
// S) memory besides their outputs. Their results have the same bits for any number of threads.
//   p[b,n,t,s] = exp(score[b,n,t,s] - log sum_s exp(score[b,n,t,s]))
// The log of the sum is computed again, because a stored float32 lse is off by 1e-3 at scores of 1e4. With sink logits the sum includes exp(sink), so a
// row of p sums to 1 - exp(sink - lse). The sink has no column in a map: top keys, statistics and pooled maps only use the p of keys.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "polyhead/sdpa.h"

#pragma GCC visibility push(default)
namespace polyhead {

struct MapsInput {
  ConstTensorView q;  // [*,N,T,H]
  ConstTensorView k;  // [*,K,S,H], of any dtype that SdpaForward::k may have
  ConstTensorView k_scale = {};  // [*,K,S]: the scales of an int8 k, as in SdpaForward::k_scale
  // A function that reports progress: the thread of the caller calls it after every few hundred rows, and at the end with done = total. If progress throws, the
  // operation ends and its outputs are unspecified.
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};
};

// What an element of a map is. The formulas are at the beginning of sdpa.h. The values are listed in the order of the computation: each value is computed from
// the one before it.
enum class MapValue : std::uint8_t {
  scaled_score,  // scale <q,k>, also for masked pairs of a query and a key
  capped_score,  // the score after the score rule and softcap, also for masked pairs of a query and a key
  score,         // the score after the bias; -inf for a masked pair of a query and a key
  probability,   // the attention weight before dropout; 0 for a masked key
  dropped,       // the attention weight after dropout, by which v is multiplied
};

// Writes the maps of all queries to out [*,N,T,S], of any floating dtype.
void attention_map(const MapsInput& input, TensorView out, const SdpaOptions& options = {}, MapValue value = MapValue::probability);

// Writes the rows of R chosen queries to out [*,N,R,S]. Each query lies in [0,T).
void attention_map_rows(const MapsInput& input, std::span<const std::int64_t> queries, TensorView out, const SdpaOptions& options = {},
                    MapValue value = MapValue::probability);

// Writes the elements of R chosen queries and C chosen keys to out [*,N,R,C]. Consecutive queries and consecutive keys select a rectangle of the map. Elements
// equal those of attention_map() up to one rounding.
void attention_map_part(const MapsInput& input, std::span<const std::int64_t> queries, std::span<const std::int64_t> keys, TensorView out,
                        const SdpaOptions& options = {}, MapValue value = MapValue::probability);

// Writes a band of W diagonals of the map to out [*,N,T,W]. Element i of query t is the probability of key t + first + i, or 0 if there is no such key. If
// there are documents, positions are counted from the start of each document.
void attention_windows(const MapsInput& input, std::int64_t first, TensorView out, const SdpaOptions& options = {});

// Finds for each query the k keys with the largest probability, k <= S, the largest first. If two keys have the same probability, the one with the smaller
// index comes first. The outputs are probability [*,N,T,k] floating and key [*,N,T,k] int64.
void attention_top_keys(const MapsInput& input, TensorView probability, TensorView key, const SdpaOptions& options = {});

// Statistics of each head, for example how far it looks. A statistic is a mean over the head's rows that are not empty; 0 if all rows are empty. Positions s
// and t are counted from the start of each document. Each view is [*,N] floating and optional.
struct HeadStatistics {
  TensorView entropy = {};      // mean over the queries t of -sum_s p log p, in nats
  TensorView largest = {};      // max_s p
  TensorView distance = {};     // mean over the queries t of sum_s p |s - t|, in positions
  TensorView first_key = {};    // p[t, 0]
  TensorView previous_key = {}; // mean over the queries t of p[t, t - 1]
  TensorView same_key = {};     // p[t, t]
  TensorView next_key = {};     // mean over the queries t of p[t, t + 1]
};
void attention_statistics(const MapsInput& input, const HeadStatistics& statistics, const SdpaOptions& options = {});

// Writes how much each query attends to each of M sets of keys: out [*,N,T,M] is the sum of the probabilities of a set's keys. key_sets is boolean: [S] for one
// set, or a tensor that broadcasts to [*,M,S]. A key may be in several sets.
void attention_key_mass(const MapsInput& input, ConstTensorView key_sets, TensorView out, const SdpaOptions& options = {});

// Writes how much attention each key receives: out [*,N,S] is the sum of p[t,s] over all queries t.
void attention_key_sums(const MapsInput& input, TensorView out, const SdpaOptions& options = {});

// How a pooled map reduces each block of attention weights to one number.
enum class Pooling : std::uint8_t { mean, sum, largest };

// Reduces each map [T,S] to h x w numbers: out [*,N,h,w], h <= T, w <= S. Element (i,j) is the mean, the sum or the largest of the attention weights of the
// queries [i T/h, (i+1) T/h) and the keys [j S/w, (j+1) S/w).
void attention_pooled_map(const MapsInput& input, TensorView out, const SdpaOptions& options = {}, Pooling pooling = Pooling::mean);

// Writes how differently each two heads attend: out [*,N,N] is the Jensen-Shannon divergence (Lin 1991) of a query's rows in the two heads, averaged over the
// queries whose rows are not empty in both heads; 0 if there is no such query. The divergence lies between 0 (equal rows) and log 2 nats (no key in common). A
// sink counts as one more key.
void attention_divergence(const MapsInput& input, TensorView out, const SdpaOptions& options = {});

// Attention rollout (Abnar and Zuidema 2020): how much each input position contributes to a position after L layers of self-attention, if only attention and
// residual connections mix positions. For layer l, A_l = residual I + (1 - residual) (mean over heads of p_l), with each row divided by its sum. out [*,R,T]
// receives the rows `queries` of the product A_L ... A_1; layers[0] gives A_1. All layers have the same T = S and the same options. The function needs O(R T)
// memory. If R >= T/2, or if a score rule has no backward function, it needs a matrix [T,T] and 64 to 256 rows of each head's map.
void attention_rollout(std::span<const MapsInput> layers, std::span<const std::int64_t> queries, TensorView out, const SdpaOptions& options = {},
                       double residual = 0.5);

}  // namespace polyhead
#pragma GCC visibility pop
