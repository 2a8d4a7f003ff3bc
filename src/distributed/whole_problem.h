// The problem of all ranks, as one rank sees it: sizes and rules of the whole, and its own rows of the tensors.
#pragma once

#include <vector>

#include "distributed/agreement.h"
#include "distributed/members.h"
#include "distributed/positions.h"
#include "polyhead/distributed/attention.h"
#include "problem/problem.h"

namespace polyhead::distributed {

// A tensor over pairs of query and key, [*,N,T_r,S] in full rank; an extent of 1 broadcasts.
struct PairTensor {
  ConstTensorView view;   // absent: not given
  bool own_rows = false;  // it has a row for each of the rank's queries; else one row, which all ranks share

  explicit operator bool() const { return static_cast<bool>(view); }
  bool one_head() const { return view.extent(-3) == 1; }
};

struct PairMask {
  PairTensor pairs;
  bool attend = true;
};

// What a call computes with, besides q, k, v and the results.
struct PairTensors {
  PairTensor bias, keep, sink, lengths;  // sink: [*,N,T_r,1]; lengths: int64 [*,1,T_r,1], of each query
  std::vector<PairMask> masks;

  // Calls f(tensor) for each that is given.
  template <class F>
  void visit(const F& f) {
    const auto part = [&](PairTensor& tensor) {
      if (tensor) f(tensor);
    };
    part(bias), part(keep), part(sink), part(lengths);
    for (PairMask& mask : masks) part(mask.pairs);
  }
};

class WholeProblem {
 public:
  // Checks the arguments of a call, exchanges the sizes, and checks what depends on those of all ranks. Tensors: SdpaForward or SdpaBackward.
  template <class Tensors>
  WholeProblem(Call& call, const Tensors& own, const SdpaOptions& options, const DistributedOptions& distributed);

  Plan plan;
  std::string plan_reason;
  Problem problem;  // of all queries and keys: sizes, scale, documents and bands, relative bias; no tensors of pairs or rows
  PairTensors pairs;
  std::vector<std::vector<Positions>> queries, keys;  // of each rank
  ProblemMemory memory;


 private:
  std::vector<Tensor> copies_;  // that views of `pairs` point to
};

}  // namespace polyhead::distributed
