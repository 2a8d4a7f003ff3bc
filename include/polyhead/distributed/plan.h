// Plans: how the ranks divide heads and keys of an attention problem among them.
#pragma once

#include <cstdint>
#include <string>

#include "polyhead/named_members.h"

#pragma GCC visibility push(default)
namespace polyhead::distributed {

// Ranks form `ring_ranks` groups of `head_ranks` consecutive ranks. Inside a group each rank computes some heads of the whole group's queries
// (DeepSpeed-Ulysses, Jacobs et al. 2023); between groups keys and values travel (ring attention, Liu et al. 2023). Fang and Zhao 2024 (USP) combine both.
struct Plan {
  int head_ranks = 1, ring_ranks = 1;  // their product is the number of ranks
  friend bool operator==(const Plan&, const Plan&) = default;
};

// Speeds of the machines and their network. The defaults describe a network of 10 Gbit/s and ranks of a few cores each.
struct Links {
  [[no_unique_address]] NamedMembers named_members = NamedMembers();
  int ranks_per_machine = 1;               // ranks 0 to ranks_per_machine - 1 share one machine, the next ranks_per_machine ranks the next machine
  double near_bytes_per_second = 5e9;      // speed between two ranks of one machine
  double far_bytes_per_second = 1.25e9;    // speed from one machine to all others; the ranks of the machine share it
  double seconds_per_message = 50e-6;
  double multiply_adds_per_second = 2e11;  // speed of one rank in attention
};

// Input of choose_plan(). Extents are those of the whole problem.
struct PlanInput {
  int ranks = 1;
  Links links{};
  std::int64_t batch = 1, heads = 1, kv_heads = 1, queries = 0, keys = 0, qk_width = 0, v_width = 0;
  int element_bytes = 4;
  bool backward = false;          // the backward pass, with gradients of q, k and v; else the forward pass
  bool shared_head_bias = false;  // a bias or boolean mask [T,S] that all heads share; each rank then needs its rows for all queries of the rank's group
  bool needs_all_keys = false;    // true if EmptyRows is not zero: a rank must then hold all keys of a row
};

struct PlanChoice {
  Plan plan;
  std::string reason;  // the reason, one fact per line
};

// Returns the plan with the shortest predicted time; of equally fast plans the one with more head ranks. A pure function.
PlanChoice choose_plan(const PlanInput& input);

// Returns the bytes that one rank receives.
double received_bytes(const PlanInput& input, Plan plan);

// Predicts the seconds of a call without a mask (docs/scaling.md): heads are exchanged before and after the computation, and keys travel during the computation.
double predicted_seconds(const PlanInput& input, Plan plan);

}  // namespace polyhead::distributed
#pragma GCC visibility pop
