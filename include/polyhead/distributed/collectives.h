// Collectives on tensors: gather, sum and redistribute the tensors of all ranks. Each is a distributed call, and its backward pass is also a
// collective of this header.
// Ranks may hold different numbers of rows. Sums are added in the order of the ranks, so they have the same bits on every rank and from run to run.
#pragma once

#include "polyhead/distributed/communicator.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::distributed {

struct CollectiveOptions {
  std::chrono::milliseconds timeout{30'000};
};

// x = the sum of x over all ranks. x has a floating dtype.
void all_reduce(Communicator& communicator, TensorView x, const CollectiveOptions& options = {});

// all = the rows of every rank along `axis`, in the order of the ranks. Backward: reduce_scatter.
void all_gather(Communicator& communicator, ConstTensorView own, int axis, TensorView all, const CollectiveOptions& options = {});
// own = this rank's rows of the sum of `all` over all ranks. Backward: all_gather.
void reduce_scatter(Communicator& communicator, ConstTensorView all, int axis, TensorView own, const CollectiveOptions& options = {});

// Exchanges slices along one axis for slices along another: `own` has this rank's part of from_axis and all of to_axis; `other` gets all of from_axis
// and this rank's part of to_axis. Backward: all_to_all with the axes and the tensors exchanged.
void all_to_all(Communicator& communicator, ConstTensorView own, int from_axis, int to_axis, TensorView other, const CollectiveOptions& options = {});

}  // namespace polyhead::distributed
#pragma GCC visibility pop
