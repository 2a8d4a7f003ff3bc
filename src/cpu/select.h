// The instruction sets that kernels are compiled for, the choice of the set in use, and its kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cpu/elementwise/kernels.h"
#include "cpu/gemm/kernels.h"
#include "cpu/score_program/kernels.h"
#include "cpu/sdpa/kernels.h"
#include "polyhead/device.h"

namespace polyhead::cpu {

// A row of cmake/isa.cmake.
struct KernelSet {
  std::string_view name;
  std::string_view needs;  // names of InstructionSet, separated by spaces
  std::size_t place = 0;   // among kernel_sets()
  std::string_view vendor = {};  // on whose processors alone it may be the default; empty: on all; "none": on no processor
};

std::span<const KernelSet> kernel_sets();  // in order of preference; the last runs on every processor

const Cpu& this_cpu();  // detect_cpu() of this machine, asked once: cpuid takes tens of microseconds under a hypervisor

// The words of `needs` that the processor lacks; empty if it can run the set.
std::string missing_for(const KernelSet& set, const Cpu& cpu);

// Why the set is never the default on this processor; empty if it may be.
std::string passed_over(const KernelSet& set, const Cpu& cpu);

enum class Tiles : std::uint8_t { allowed, refused };

// The set named `forced`, or, if that is empty, the first that is not passed over, of those without AMX tiles if they are refused. Error for an
// unknown name and for a set that the processor cannot run. Depends on its arguments only, so that tests can describe other machines.
const KernelSet& select_kernels(std::span<const KernelSet> sets, const Cpu& cpu, std::string_view forced, Tiles tiles = Tiles::allowed);

// The set that set_kernel_instruction_set() chose, else the environment variable POLYHEAD_ISA, else the first that is not passed over.
const KernelSet& current_kernels();

// The same for an operation that multiplies pairs of bfloat16. The first such operation asks Linux for AMX tiles if the set has them: from then on
// Linux refuses small signal stacks in this process, so programs without bfloat16 do not ask. If it refuses the tiles, the next set without them is the
// current one from then on. Both have the same base, so kernels that ran before are not different ones.
const KernelSet& current_kernels_for_pairs();

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
template <>
const ScoreProgramKernels& kernels_of(const KernelSet& set);

template <class Kernels>
const Kernels& current_kernels_of() {
  return kernels_of<Kernels>(current_kernels());
}

}  // namespace polyhead::cpu
