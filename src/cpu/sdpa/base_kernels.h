// Table entries of an instruction set with a base (cmake/isa.cmake): its own kernel computes native tasks, and the kernel of its base all others. For
// kernel sources only.
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

// kBase: the kernel table of the base instruction set; kFunction: the member of that table that runs tasks that are not native.
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
