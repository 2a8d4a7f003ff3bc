// The processor of this machine and the instruction sets that the kernels were compiled for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace polyhead {

struct InstructionSet {
  std::string_view name;   // as Linux spells it: "avx512bw"
  std::string_view adds;   // short phrase: what attention gains by this instruction set
  bool available = false;  // the processor has the instruction set and the operating system saves its registers
};

struct CpuCache {
  int level = 0;      // 1 is the nearest to the core
  std::string kind;   // "data", "instruction" or "unified"
  std::int64_t bytes = 0;
  int shared_by = 0;  // logical processors that share this cache; 0: not known
};

struct Cpu {
  std::string name;               // as the processor reports it; empty: not known
  std::string vendor;             // "GenuineIntel", "AuthenticAMD", ...; empty: not known
  std::string_view architecture;  // "x86-64", "aarch64", "riscv" or "other"
  int online = 0;                 // logical processors that are switched on
  int usable = 0;                 // logical processors that this process may run on
  std::vector<InstructionSet> instruction_sets;  // all instruction sets that polyhead knows for this architecture, available or not
  std::vector<CpuCache> caches;                  // caches that the first processor uses; empty: not known
};

// Reads what the processor and the operating system report; measures nothing.
Cpu detect_cpu();

// Returns whether the processor has the instruction set. A name that is not in cpu.instruction_sets gives false.
bool has_instruction_set(const Cpu& cpu, std::string_view name);

// An instruction set that the kernels were compiled for.
struct KernelInstructionSet {
  std::string_view name;   // "avx512"
  std::string_view needs;  // the Cpu::instruction_sets that the kernels need, separated by spaces; empty: the kernels run on every machine of the architecture
  bool available = false;    // the processor can run these kernels; Linux may still refuse AMX tiles to a process
  std::string why_not_used;  // the reason why another set is in use; empty for the set in use
};

std::vector<KernelInstructionSet> kernel_instruction_sets();  // all sets, in order of preference

// Returns the set in use: the set given to set_kernel_instruction_set(); without such a call the set that the environment variable POLYHEAD_ISA names (read
// once); without the variable the first set that the processor can run and that is not reserved for another vendor's processors. With amx_bf16 the first
// operation that uses AMX tiles requests memory for the tiles from Linux; if Linux refuses, the next set is in use from then on. One set gives the same bits on
// every machine; results of two sets differ by rounding. An unknown or unavailable name is an Error.
std::string_view kernel_instruction_set();
void set_kernel_instruction_set(std::string_view name);  // empty: restores the default. Call it only while no operation runs.

}  // namespace polyhead
#pragma GCC visibility pop
