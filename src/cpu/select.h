// The instruction sets that kernels are compiled for, the choice of the set in use, and its kernels.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "cpu/elementwise/kernels.h"
#include "cpu/gemm/kernels.h"
#include "cpu/sdpa/kernels.h"
#include "polyhead/device.h"

namespace polyhead::cpu {

// A row of cmake/isa.cmake.
struct KernelSet {
  std::string_view name;
  std::string_view needs;  // names of InstructionSet, separated by spaces
  std::size_t place = 0;   // among kernel_sets()
};

std::span<const KernelSet> kernel_sets();  // in order of preference; the last runs on every processor

const Cpu& this_cpu();  // detect_cpu() of this machine, asked once: cpuid takes tens of microseconds under a hypervisor

// The words of `needs` that the processor lacks; empty if it can run the set.
std::string missing_for(const KernelSet& set, const Cpu& cpu);

// The set named `forced`, or, if that is empty, the first that the processor can run. Error for an unknown name and for a set that the
// processor cannot run. Depends on its arguments only, so that tests can describe other machines.
const KernelSet& select_kernels(std::span<const KernelSet> sets, const Cpu& cpu, std::string_view forced);

// The set that set_kernel_instruction_set() chose, else the environment variable POLYHEAD_ISA, else the first that the processor can run.
const KernelSet& current_kernels();

// Kernels of one kind that are compiled for a set. Each kind has a table and a source for it, which CMakeLists.txt makes: a program links the kernels
// of the operations that it calls.
template <class Kernels>
const Kernels& kernels_of(const KernelSet& set);
template <>
const ForwardKernels& kernels_of(const KernelSet& set);
template <>
const MergeKernels& kernels_of(const KernelSet& set);
template <>
const BackwardKernels& kernels_of(const KernelSet& set);
template <>
const JvpKernels& kernels_of(const KernelSet& set);
template <>
const BackwardBackwardKernels& kernels_of(const KernelSet& set);
template <>
const GradientKernels& kernels_of(const KernelSet& set);
template <>
const MapsKernels& kernels_of(const KernelSet& set);
template <>
const GemmKernels& kernels_of(const KernelSet& set);
template <>
const ActivationKernels& kernels_of(const KernelSet& set);
template <>
const NormKernels& kernels_of(const KernelSet& set);
template <>
const SoftmaxKernels& kernels_of(const KernelSet& set);
template <>
const AdamKernels& kernels_of(const KernelSet& set);
template <>
const DropoutKernels& kernels_of(const KernelSet& set);

template <class Kernels>
const Kernels& current_kernels_of() {
  return kernels_of<Kernels>(current_kernels());
}

}  // namespace polyhead::cpu
