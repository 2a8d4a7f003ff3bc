// Scaled dot-product attention of a sequence that is spread over several ranks: each rank holds some queries, and some keys with their values.
//
// Every rank passes its own part of the arguments of polyhead/sdpa.h:
//   q, out, lse, d_out, d_q       the rank's T_r queries              k, v, d_k, d_v            the rank's S_r keys
//   bias, attend, block, keep     [*,N,T_r,S]: own queries, all keys   key_starts, key_lengths   [*], or [*,T_r]; positions in the whole sequence
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

// If every rank has one query, a bias or sink with one row could mean two things. own: the row belongs to the rank's own query. shared: all ranks share the
// row.
enum class OneRow : std::uint8_t { own, shared };

// The seconds that a call took on this rank, as a whole and by part.
struct CallReport {
  double agreement_seconds = 0;  // seconds in which the ranks exchanged and compared their arguments
  double compute_seconds = 0;    // seconds in attention kernels
  double waiting_seconds = 0;    // seconds of waiting for messages
  double seconds = 0;            // seconds of the whole call
  std::int64_t sent_bytes = 0;
};

struct DistributedOptions {
  SliceOrder order = SliceOrder::contiguous;  // which positions of the sequence each rank holds, for queries and for keys
  std::optional<Plan> plan{};                 // absent: choose_plan() decides
  Links links{};                              // speeds of machines and network that choose_plan() assumes
  std::optional<OneRow> one_row{};            // Required if every rank has one query and the call computes the gradient of a bias or sink that has one row.
  // True: a backward pass with d_bias (or d_sink) will follow. If that pass will require `one_row` and it is absent, sdpa_forward already throws the error, on all
  // ranks. It is enough that one rank sets the flag.
  bool d_bias_follows = false, d_sink_follows = false;
  // A rank gives up if a rank for which it waits has sent nothing for this time plus 4 times the predicted compute time of the busiest rank, in this call and the
  // previous one together, because a rank sends nothing while it computes. Each rank predicts from its own speed.
  std::chrono::milliseconds timeout{30'000};
  CallReport* report = nullptr;               // receives the times of the call; nullptr: no report
};

void sdpa_forward(Communicator& communicator, const SdpaForward& own, const SdpaOptions& options = {}, const DistributedOptions& distributed = {});
void sdpa_backward(Communicator& communicator, const SdpaBackward& own, const SdpaOptions& options = {}, const DistributedOptions& distributed = {});

// Describes the plan of a forward pass, the reason for it, and the steps of this rank, one fact per line. Ranks exchange messages in explain(), so all ranks
// must call it.
std::string explain(Communicator& communicator, const SdpaForward& own, const SdpaOptions& options = {}, const DistributedOptions& distributed = {});

}  // namespace polyhead::distributed
#pragma GCC visibility pop
