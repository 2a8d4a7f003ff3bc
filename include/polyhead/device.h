// What this machine has, for the choice of kernels and for `polyhead devices`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead {

struct InstructionSet {
  std::string_view name;     // as Linux spells it: "avx512bw"
  std::string_view adds;     // what it adds for attention
  bool available = false;    // the processor has it and the operating system saves its registers
};

struct CpuCache {
  int level = 0;             // 1 is the nearest
  std::string kind;          // "data", "instruction" or "unified"
  std::int64_t bytes = 0;
  int shared_by = 0;         // logical processors that share one; 0: not known
};

struct Cpu {
  std::string name;          // as the processor calls itself; empty: not known
  std::string_view architecture;  // "x86-64", "aarch64", …
  int online = 0;            // logical processors that are switched on
  int usable = 0;            // of these, what this process may run on
  std::vector<InstructionSet> instruction_sets;  // every row that exists for the architecture, available or not
  std::vector<CpuCache> caches;                     // of the first processor; empty: not known
};

// Asks the processor and the operating system; nothing is measured.
Cpu detect_cpu();

// Whether the row is there and available; false for a name that the architecture does not have.
bool has_instruction_set(const Cpu& cpu, std::string_view name);

// An instruction set that the kernels were compiled for.
struct KernelInstructionSet {
  std::string_view name;    // "avx512"
  std::string_view needs;   // rows of Cpu::instruction_sets, a space between; empty: runs everywhere
  bool available = false;
};

std::vector<KernelInstructionSet> kernel_instruction_sets();  // the preferred first

// What the kernels use: what was set here, else the environment variable POLYHEAD_ISA (read once), else the first that is available. Results
// are the same bits for one instruction set and differ by rounding between two. Error where a name is not known or not available.
std::string_view kernel_instruction_set();
void set_kernel_instruction_set(std::string_view name);  // empty: back to the default. Not while an operation runs.

}  // namespace polyhead
