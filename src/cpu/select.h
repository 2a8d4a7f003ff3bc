// Which instruction set the kernels use.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cpu/elementwise/kernels.h"
#include "cpu/gemm/kernels.h"
#include "cpu/sdpa/kernels.h"
#include "polyhead/device.h"

namespace polyhead::cpu {

// The kernels compiled for one row of cmake/isa.cmake.
struct KernelSet {
  std::string_view name;
  std::string_view needs;  // names of InstructionSet, a space between
  SdpaKernels sdpa;
  GemmKernels gemm;
  const Curves& (*curves)();
  void (*normalise_row)(const NormRow& row);
};

std::span<const KernelSet> kernel_sets();  // the preferred first; the last needs nothing

// What the processor lacks for the set, as words of `needs`; empty: it can run it.
std::string missing_for(const KernelSet& set, const Cpu& cpu);

// The set of that name, or where forced is empty the first that the processor can run. An Error for a name that does not exist or whose
// instructions the processor lacks. A function of its arguments only: a test can ask about other machines.
const KernelSet& select_kernels(std::span<const KernelSet> sets, const Cpu& cpu, std::string_view forced);

// For this process: by set_kernel_instruction_set(), else the environment's POLYHEAD_ISA, else what the processor has.
const KernelSet& current_kernels();

}  // namespace polyhead::cpu
