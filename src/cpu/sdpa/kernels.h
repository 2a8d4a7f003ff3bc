// The tables of kernel functions of attention. Every instruction set has such tables.
#pragma once

#include "cpu/sdpa/task.h"

namespace polyhead::cpu {

struct ForwardKernels {
  static const ForwardKernels* const of_sets[];  // one entry per instruction set, in the order of kernel_sets()
  bool native = false;  // true: the instruction set multiplies bfloat16 pairs, so HeadGroup::native may be set
  // Returns the bytes of scratch, aligned to a cache line, that one call of `forward` needs. The kernel allocates no other memory.
  std::int64_t (*forward_scratch)(const ForwardTask& task);
  void (*forward)(const ForwardTask& task, void* scratch);
  // Returns whether v is read from the caller's tensor without a copy. If so, whole panels of k with contiguous rows are also read without a copy.
  bool (*reads_stored_values)(const ForwardTask& task);
};

struct MergeKernels {
  static const MergeKernels* const of_sets[];  // one entry per instruction set, in the order of kernel_sets()
  // Computes out and lse from the results of all key blocks in task.partial [blocks, rows, partial_stride()], and overwrites task.partial.
  void (*merge)(const ForwardTask& task, std::int64_t blocks);
};

struct BackwardKernels {
  static const BackwardKernels* const of_sets[];  // one entry per instruction set, in the order of kernel_sets()
  std::int64_t (*backward_scratch)(const BackwardTask& task);
  void (*backward)(const BackwardTask& task, void* scratch);
};

struct JvpKernels {
  static const JvpKernels* const of_sets[];  // one entry per instruction set, in the order of kernel_sets()
  std::int64_t (*jvp_scratch)(const JvpTask& task);
  void (*jvp)(const JvpTask& task, void* scratch);
};

struct BackwardBackwardKernels {
  static const BackwardBackwardKernels* const of_sets[];  // one entry per instruction set, in the order of kernel_sets()
  std::int64_t (*backward_backward_scratch)(const BackwardBackwardTask& task);
  void (*backward_backward)(const BackwardBackwardTask& task, void* scratch);
};

struct GradientKernels {
  static const GradientKernels* const of_sets[];  // one entry per instruction set, in the order of kernel_sets()
  void (*add_splits)(const GradientTask& task);
};

struct MapsKernels {
  static const MapsKernels* const of_sets[];  // one entry per instruction set, in the order of kernel_sets()
  std::int64_t (*maps_scratch)(const MapsTask& task);
  void (*maps)(const MapsTask& task, void* scratch);
  // Returns the entropy -sum m log m of m = (p + q) / 2. p and q are arrays of float64 if `dtype` is float64, else of float32; `count` is a multiple of 16.
  double (*entropy_of_mean)(DType dtype, const void* p, const void* q, std::int64_t count);
};

}  // namespace polyhead::cpu
