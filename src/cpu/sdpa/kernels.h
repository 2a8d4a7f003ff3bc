// The kernels of attention that every instruction set has.
#pragma once

#include "cpu/sdpa/task.h"

namespace polyhead::cpu {

struct ForwardKernels {
  bool native = false;  // whether this set has products of bfloat16 pairs: HeadGroup::native
  // Bytes of scratch that one call of `forward` needs, aligned to a cache line. The kernel allocates no other memory.
  std::int64_t (*forward_scratch)(const ForwardTask& task);
  void (*forward)(const ForwardTask& task, void* scratch);
  // Whether v is multiplied as it is stored, without a copy. The same then holds for whole panels of k whose rows are contiguous.
  bool (*reads_stored_values)(const ForwardTask& task);
};

struct MergeKernels {
  // Computes out and lse from task.partial [blocks, rows, partial_stride()], the results of all key blocks, which it overwrites.
  void (*merge)(const ForwardTask& task, std::int64_t blocks);
};

struct BackwardKernels {
  std::int64_t (*backward_scratch)(const BackwardTask& task);
  void (*backward)(const BackwardTask& task, void* scratch);
};

struct JvpKernels {
  std::int64_t (*jvp_scratch)(const JvpTask& task);
  void (*jvp)(const JvpTask& task, void* scratch);
};

struct BackwardBackwardKernels {
  std::int64_t (*backward_backward_scratch)(const BackwardBackwardTask& task);
  void (*backward_backward)(const BackwardBackwardTask& task, void* scratch);
};

struct GradientKernels {
  void (*add_splits)(const GradientTask& task);
};

struct MapsKernels {
  std::int64_t (*maps_scratch)(const MapsTask& task);
  void (*maps)(const MapsTask& task, void* scratch);
  // Returns the entropy -sum m log m of m = (p + q) / 2. p and q are float64 arrays if `dtype` is float64, else float32 arrays; `count` is a multiple of 16.
  double (*entropy_of_mean)(DType dtype, const void* p, const void* q, std::int64_t count);
};

}  // namespace polyhead::cpu
