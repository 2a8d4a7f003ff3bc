// Scaled dot-product attention of a sequence that is spread over several ranks: each rank holds some queries, and some keys with their values.
//
// Of the arguments of polyhead/sdpa.h, every rank passes its own part:
//   q, out, lse, d_out, d_q       the rank's T_r queries              k, v, d_k, d_v            the rank's S_r keys
//   bias, attend, block, keep     [*,N,T_r,S]: its queries, all keys   key_lengths               [*], or [*,T_r]; lengths count in the whole sequence
//   attend_keys, block_keys       [*,S]: all keys                     sink                      [N], or broadcasts to [*,N,T_r]
// All other arguments (causal, window, documents, diagonal_offsets, relative_bias, ...) describe the whole sequence, as in a call on one machine, and
// must be the same on all ranks: the ranks compare sizes and rules, and an Error names the rank that differs.
//
// A tensor that broadcasts along the queries (extent 1) is shared by all ranks: each passes the same, and its gradient is the sum over all
// ranks, on every rank. Dropout keeps the same entries as on one machine. Not supported, with an Error that says so: attention_weights, int8 keys,
// views of bias
// gradients that overlap themselves, and with more than one ring rank EmptyRows other than zero.
// Results. With ring_ranks = 1 (only heads are on several ranks) they have the bits of one machine, except gradients of tensors that ranks share and,
// if there are fewer key/value heads than ranks, d_k, d_v and 16-bit d_q. With a ring they agree within the float32 bound, and are the same from run
// to run. Where partial results are added up, 16-bit tensors are converted to float32 and rounded once at the end. In a ring the backward pass takes
// delta = <d_out, out> from out as it was rounded: an error of 2^-8 (bfloat16) or 2^-11 (float16) of sum |d_out out| in each row.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "polyhead/distributed/communicator.h"
#include "polyhead/distributed/plan.h"
#include "polyhead/distributed/slices.h"
#include "polyhead/sdpa.h"

#pragma GCC visibility push(default)
namespace polyhead::distributed {

// With one query on every rank, a bias or sink of one row is ambiguous: the rank's own row, or one row that all ranks share.
enum class OneRow : std::uint8_t { own, shared };

// How long each part of a call took on this rank.
struct CallReport {
  double agreement_seconds = 0;  // exchanging and comparing the ranks' arguments
  double compute_seconds = 0;    // in attention kernels
  double waiting_seconds = 0;    // blocked on messages
  double seconds = 0;            // the whole call
  std::int64_t sent_bytes = 0;
};

struct DistributedOptions {
  SliceOrder order = SliceOrder::contiguous;  // order of the slices of queries and of keys
  std::optional<Plan> plan{};                 // not given: choose_plan()
  Links links{};                              // for choose_plan()
  std::optional<OneRow> one_row{};            // required if a gradient depends on the choice
  // For sdpa_forward: tells that a backward pass with d_bias or d_sink follows. A missing one_row is then an Error in the forward pass already, on
  // all ranks if one of them sets this.
  bool d_bias_follows = false, d_sink_follows = false;
  // How long a rank may send nothing. To this is added 4 times the predicted compute time of the busiest rank in this call and the one before (at the
  // speed of this rank), because a rank that computes does not answer.
  std::chrono::milliseconds timeout{30'000};
  CallReport* report = nullptr;               // filled in, if given
};

void sdpa_forward(Communicator& communicator, const SdpaForward& own, const SdpaOptions& options = {}, const DistributedOptions& distributed = {});
void sdpa_backward(Communicator& communicator, const SdpaBackward& own, const SdpaOptions& options = {}, const DistributedOptions& distributed = {});

// Describes the plan of a forward pass with its reason, and the steps of this rank, one fact per line. All ranks must call it, as it is a distributed call.
std::string explain(Communicator& communicator, const SdpaForward& own, const SdpaOptions& options = {}, const DistributedOptions& distributed = {});

}  // namespace polyhead::distributed
#pragma GCC visibility pop
