// Scaled dot-product attention of a sequence that is spread over several ranks: each rank holds some queries, and some keys with their values.
//
// Every rank passes its own part of the arguments of polyhead/sdpa.h:
//   q, out, lse, d_out, d_q       the rank's T_r queries              k, v, d_k, d_v            the rank's S_r keys
//   bias, attend, block, keep     [*,N,T_r,S]: its queries, all keys   key_starts, key_lengths   [*], or [*,T_r]; positions in the whole sequence
//   attend_keys, block_keys       [*,S]: all keys                     sink                      [N], or broadcasts to [*,N,T_r]
// All other arguments (causal, window, documents, diagonal_offsets, relative_bias, ...) describe the whole sequence, as in a call on one machine, and
// must be the same on all ranks: the ranks compare sizes and rules, and an Error names the rank that differs.
//
// A tensor that broadcasts along the queries (extent 1) is shared by all ranks: each rank passes the same tensor, and each gets its gradient summed over
// all ranks. Dropout keeps the same entries as on one machine. A call with one of these is an Error: attention_weights; int8 keys; a d_bias, d_sink or
// d_relative_bias whose elements share memory; with more than one ring rank, an EmptyRows other than zero.
//
// With ring_ranks = 1 the ranks divide only the heads among them. Results then have the same bits as on one machine, except gradients of tensors that all ranks
// share and, if there are fewer key/value heads than ranks, d_k, d_v and 16-bit d_q. With a ring, results differ from those of one machine by float32
// rounding, and are the same from run to run. Where partial results are added up, 16-bit tensors are converted to float32 and rounded once at the end. In a ring
// the backward pass computes delta = <d_out, out> from the rounded out. This adds an error of 2^-8 (bfloat16) or 2^-11 (float16) of sum |d_out out| to each row.
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

// If every rank has one query, a bias or sink of one row could mean two things: the row of the rank's own query, or one row that all ranks share.
enum class OneRow : std::uint8_t { own, shared };

// The time that each part of a call took on this rank.
struct CallReport {
  double agreement_seconds = 0;  // time for exchanging and comparing the ranks' arguments
  double compute_seconds = 0;    // time in attention kernels
  double waiting_seconds = 0;    // time of waiting for messages
  double seconds = 0;            // time of the whole call
  std::int64_t sent_bytes = 0;
};

struct DistributedOptions {
  SliceOrder order = SliceOrder::contiguous;  // order of the slices of queries and of keys
  std::optional<Plan> plan{};                 // absent: choose_plan() decides
  Links links{};                              // speeds that choose_plan() assumes
  std::optional<OneRow> one_row{};            // required if every rank has one query and the gradient of a bias or sink of one row is computed
  // Set d_bias_follows (or d_sink_follows) if a backward pass with d_bias (or d_sink) follows: if any rank sets it and one_row is required but missing,
  // sdpa_forward already throws, on all ranks.
  bool d_bias_follows = false, d_sink_follows = false;
  // The longest time that a rank may send nothing before the other ranks give up. A rank sends nothing while it computes, so the library adds 4 times the
  // compute time that it predicts for the busiest rank, in this call and the previous one together. The prediction uses the speed of the rank that waits.
  std::chrono::milliseconds timeout{30'000};
  CallReport* report = nullptr;               // if given, receives the times of the call
};

void sdpa_forward(Communicator& communicator, const SdpaForward& own, const SdpaOptions& options = {}, const DistributedOptions& distributed = {});
void sdpa_backward(Communicator& communicator, const SdpaBackward& own, const SdpaOptions& options = {}, const DistributedOptions& distributed = {});

// Describes the plan of a forward pass with its reason, and the steps of this rank, one fact per line. All ranks must call explain(), because it is a
// distributed call.
std::string explain(Communicator& communicator, const SdpaForward& own, const SdpaOptions& options = {}, const DistributedOptions& distributed = {});

}  // namespace polyhead::distributed
#pragma GCC visibility pop
