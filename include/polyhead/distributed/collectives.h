// Collectives on tensors: the ranks gather, sum or redistribute their tensors. All ranks must call a collective together. Its backward pass is also a function
// of this header.
// Ranks may hold different numbers of rows. Sums are added in the order of the ranks, so they have the same bits on every rank and from run to run.
#pragma once

#include "polyhead/distributed/communicator.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::distributed {

struct CollectiveOptions {
  std::chrono::milliseconds timeout{30'000};
};

// Replaces x by the sum of x over all ranks, on every rank. x has a floating dtype.
void all_reduce(Communicator& communicator, TensorView x, const CollectiveOptions& options = {});

// `all` receives the rows of every rank along `axis`, in the order of the ranks. The backward pass is reduce_scatter().
void all_gather(Communicator& communicator, ConstTensorView own, int axis, TensorView all, const CollectiveOptions& options = {});
// Adds up `all` over all ranks; `own` receives this rank's rows of the sum. The backward pass is all_gather().
void reduce_scatter(Communicator& communicator, ConstTensorView all, int axis, TensorView own, const CollectiveOptions& options = {});

// Exchanges slices along one axis for slices along another axis. `own` holds this rank's part of from_axis and all of to_axis; `other` receives all of
// from_axis and this rank's part of to_axis. The backward pass is all_to_all() with from_axis and to_axis swapped, from the gradient of `other` to that of
// `own`.
void all_to_all(Communicator& communicator, ConstTensorView own, int from_axis, int to_axis, TensorView other, const CollectiveOptions& options = {});

}  // namespace polyhead::distributed
#pragma GCC visibility pop
