// The kernels of each instruction set, and the choice of the set in use.
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
  std::string_view needs;  // names of InstructionSet, separated by spaces
  SdpaKernels sdpa;
  GemmKernels gemm;
  ActivationKernels activations;
  NormKernels norm;
  SoftmaxKernels softmax;
  AdamKernels adam;
  DropoutKernels dropout;
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

}  // namespace polyhead::cpu
