#pragma once

#include "polyhead/executor.h"
#include "polyhead/tensor_view.h"
#include "polyhead/workspace.h"

namespace polyhead::cpu {

struct GemmKernels;

// Returns the kernels that gemm() uses for tensors of this dtype and for which PackedMatrix packs. If these kernels multiply bfloat16 by AMX tiles, the first
// call requests the tiles from Linux.
const GemmKernels& current_gemm_kernels(DType dtype);

// A copy of b [*k,*n] in the order in which the kernels of the current instruction set read b. Use it for several products with the same b.
class PackedMatrix {
 public:
  explicit PackedMatrix(ConstTensorView b, int k_axes = 1, Executor* executor = nullptr, const Workspace* workspace = nullptr);
  PackedMatrix(PackedMatrix&&) = default;
  PackedMatrix& operator=(PackedMatrix&&) = default;
  PackedMatrix(const PackedMatrix&) = delete;  // a copy's panels_ would point into the memory of the original
  PackedMatrix& operator=(const PackedMatrix&) = delete;
  ~PackedMatrix() = default;
  char* panels() const { return panels_; }
  const GemmKernels* kernels() const { return kernels_; }

 private:
  const GemmKernels* kernels_;
  Tensor memory_;
  char* panels_;
};

// c[m,n] = (add ? c[m,n] : 0) + sum_k a[m,k] b[k,n] + bias[n], where m, n and k may each stand for several axes.
struct Gemm {
  ConstTensorView a;          // [*m,*k]  float32, float64, bfloat16 or float16; all tensors share the dtype
  ConstTensorView b;          // [*k,*n]
  TensorView c;               // [*m,*n]  must not overlap another tensor, and no two of its elements may share memory
  ConstTensorView bias = {};  // [*n]     optional
  int k_axes = 1;             // number of axes that are summed over: the last axes of a and the first of b
  bool add = false;
  const PackedMatrix* packed = nullptr;  // a packed copy of b; ignored unless it was packed for the current instruction set
};

// Computes the product. Strides and extents may have any value. Sums are float32, or float64 for float64 tensors. Products of bfloat16 are exact, except that AMX
// takes subnormal numbers as 0. The bits of an element of c depend only on its row of a and its column of b, not on the number of threads, the strides, the
// caches, or other rows and columns. Error if shapes or dtypes disagree; overlap is not checked. Memory for large packed copies comes from the workspace, if given.
void gemm(const Gemm& product, Executor* executor = nullptr, const Workspace* workspace = nullptr);

// Returns the number of panels of b that a thread multiplies with each block of rows. If there are fewer blocks of rows than threads, this number is small
// enough that all threads have work. It does not affect any sum.
constexpr std::int64_t panels_of_item(std::int64_t row_blocks, std::int64_t panels, std::int64_t threads) {
  std::int64_t group = panels;
  while (group > 1 && threads > 1 && row_blocks * ((panels + group - 1) / group) < 4 * threads) group = (group + 1) / 2;
  return group;
}

}  // namespace polyhead::cpu
