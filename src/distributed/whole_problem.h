// One rank's view of the problem of all ranks: the sizes and rules of the whole problem, and this rank's rows of the tensors.
#pragma once

#include <vector>

#include "distributed/agreement.h"
#include "distributed/members.h"
#include "distributed/positions.h"
#include "polyhead/distributed/attention.h"
#include "problem/problem.h"

namespace polyhead::distributed {

// A tensor over query-key pairs, [*,N,T_r,S] in full rank; an extent of 1 broadcasts.
struct PairTensor {
  ConstTensorView view;   // absent: not given
  bool own_rows = false;  // true: a row for each of the rank's queries; false: one row, which all ranks share

  explicit operator bool() const { return static_cast<bool>(view); }
  bool one_head() const { return view.extent(-3) == 1; }
};

struct PairMask {
  PairTensor pairs;
  bool attend = true;
};

// The tensors of a call besides q, k, v and the results.
struct PairTensors {
  PairTensor bias, keep, sink, ranges;  // sink: [*,N,T_r,1]; ranges: int64 [*,1,T_r,2], first and last of KeyRules::ranges for each query
  std::vector<PairMask> masks;

  // Calls f(tensor) for each tensor that is given.
  template <class F>
  void visit(const F& f) {
    const auto part = [&](PairTensor& tensor) {
      if (tensor) f(tensor);
    };
    part(bias), part(keep), part(sink), part(ranges);
    for (PairMask& mask : masks) part(mask.pairs);
  }
};

class WholeProblem {
 public:
  // Checks the arguments of a call, exchanges the sizes, and checks what depends on the sizes of all ranks. Tensors: SdpaForward or SdpaBackward.
  template <class Tensors>
  WholeProblem(Call& call, const Tensors& own, const SdpaOptions& options, const DistributedOptions& distributed);

  Plan plan;
  std::string plan_reason;
  // The problem of all ranks together: sizes, scale, documents, bands and relative bias. It has no tensors over query-key pairs or query rows.
  Problem problem;
  PairTensors pairs;
  std::vector<std::vector<Positions>> queries, keys;  // the positions of each rank
  ProblemMemory memory;


 private:
  std::vector<Tensor> copies_;  // memory of views in `pairs`
};

}  // namespace polyhead::distributed
