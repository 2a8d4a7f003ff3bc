// Lists the instruction sets that kernels are compiled for, chooses the set in use, and returns the kernels of a set.
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

// An instruction set for which kernels are compiled. cmake/isa.cmake has one row for each.
struct KernelSet {
  std::string_view name;
  std::string_view needs;  // names as in InstructionSet, separated by spaces: what the processor must have
  std::size_t place = 0;   // index in kernel_sets()
  std::string_view vendor = {};  // the set may be the default only on processors of this vendor; empty: on all processors; "none": on no processor
};

std::span<const KernelSet> kernel_sets();  // in order of preference; the last set runs on every processor

const Cpu& this_cpu();  // the result of detect_cpu(), which is called once, because cpuid takes tens of microseconds under a hypervisor

// Returns the words of `needs` that the processor lacks, or an empty text if the processor can run the set.
std::string missing_for(const KernelSet& set, const Cpu& cpu);

// Returns the reason why the set is never the default on this processor, or an empty text if it may be the default.
std::string why_not_preferred(const KernelSet& set, const Cpu& cpu);

enum class Tiles : std::uint8_t { allowed, refused };

// Returns the set named `forced`. If `forced` is empty, returns the first set that may be the default (passed_over() is empty); with Tiles::refused, sets that
// need AMX tiles are left out. Error for an unknown name and for a set that the processor cannot run. The result depends only on the arguments, so tests can
// describe other machines.
const KernelSet& select_kernels(std::span<const KernelSet> sets, const Cpu& cpu, std::string_view forced, Tiles tiles = Tiles::allowed);

// Returns the set that set_kernel_instruction_set() chose. Without such a call, returns the set that the environment variable POLYHEAD_ISA names. Without the
// variable, returns the first set that may be the default.
const KernelSet& current_kernels();

// Returns the current set for operations that multiply bfloat16 pairs. If the set has AMX tiles, the first such operation requests the tiles from Linux. After
// a request Linux refuses small signal stacks in this process, so programs without bfloat16 make no request. If Linux refuses the tiles, the next set without
// tiles is the current set from then on. Both sets extend the same base set, so all other kernels stay the same.
const KernelSet& current_kernels_for_pairs();

// Returns the kernels of one kind, such as ForwardKernels, for a set. CMakeLists.txt generates a source with the array `of_sets` of each kind. So a program
// links only the kernels of the operations that it calls.
template <class Kernels>
const Kernels& kernels_of(const KernelSet& set) {
  return *Kernels::of_sets[set.place];
}

template <class Kernels>
const Kernels& current_kernels_of() {
  return kernels_of<Kernels>(current_kernels());
}

}  // namespace polyhead::cpu
