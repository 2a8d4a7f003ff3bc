// Entries in the kernel table of an instruction set that has a base set (cmake/isa.cmake). The kernel of the set itself computes native tasks (bfloat16
// products). The kernel of the base set computes all other tasks. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/bf16_pairs.h"
#include "cpu/sdpa/kernels.h"

#ifdef POLYHEAD_BASE_ISA

namespace polyhead::cpu::POLYHEAD_BASE_ISA {
extern const ForwardKernels forward_kernels;
extern const BackwardKernels backward_kernels;
}  // namespace polyhead::cpu::POLYHEAD_BASE_ISA

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// kBase is the kernel table of the base set. kFunction is the member of kBase that is called for tasks that are not native.
template <template <class> class Scratch, const auto& kBase, auto kFunction, class Task>
std::int64_t native_scratch_bytes(const Task& task) {
  Scratch<float> scratch;
  return task.native ? Scratch<float>::layout(task, nullptr, scratch) : (kBase.*kFunction)(task);
}
template <template <class, class> class Kernel, const auto& kBase, auto kFunction, class Task>
void run_native_kernel(const Task& task, void* memory) {
  task.native ? Kernel<float, Bf16Pair>(task, memory).run() : (kBase.*kFunction)(task, memory);
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA

#endif
