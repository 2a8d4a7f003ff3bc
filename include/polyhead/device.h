// The processor of this machine and the instruction sets that the kernels were compiled for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace polyhead {

struct InstructionSet {
  std::string_view name;   // the instruction set's name in Linux: "avx512bw"
  std::string_view adds;   // a short phrase: what attention gains by this instruction set
  bool available = false;  // true: the processor has the instruction set, and the operating system saves its registers
};

struct CpuCache {
  int level = 0;      // level 1 is the cache nearest to the core
  std::string kind;   // what the cache holds: "data", "instruction" or "unified"
  std::int64_t bytes = 0;
  int shared_by = 0;  // number of logical processors that share this cache; 0: not known
};

struct Cpu {
  std::string name;               // the processor's name as the processor itself reports it; empty: not known
  std::string vendor;             // the processor's vendor: "GenuineIntel", "AuthenticAMD", ...; empty: not known
  std::string_view architecture;  // the processor's architecture: "x86-64", "aarch64", "riscv" or "other"
  int online = 0;                 // number of logical processors that are switched on
  int usable = 0;                 // number of logical processors that this process may run on
  std::vector<InstructionSet> instruction_sets;  // all instruction sets that polyhead knows for this architecture, available or not
  std::vector<CpuCache> caches;                  // the caches of the first processor; empty: not known
};

// Reads what the processor and the operating system report; measures nothing.
Cpu detect_cpu();

// Returns whether the processor has the instruction set. A name that is not in cpu.instruction_sets gives false.
bool has_instruction_set(const Cpu& cpu, std::string_view name);

// An instruction set that the kernels were compiled for.
struct KernelInstructionSet {
  std::string_view name;   // "avx512"
  // names of the Cpu::instruction_sets that the kernels need, separated by spaces; empty: every machine of the architecture can run the kernels
  std::string_view needs;
  bool available = false;    // true: the processor can run these kernels. With amx_bf16, Linux may still refuse the memory for AMX tiles.
  std::string why_not_used;  // the reason why polyhead uses another set; empty for the set in use
};

std::vector<KernelInstructionSet> kernel_instruction_sets();  // Returns all compiled sets, the preferred one first.

// Returns the name of the set in use:
//  - the set that set_kernel_instruction_set() was given;
//  - without such a call, the set that the environment variable POLYHEAD_ISA names; the variable is read once;
//  - without the variable, the first set that the processor can run and that may be the default on processors of its vendor.
// With amx_bf16, the first operation that uses AMX tiles requests memory for the tiles from Linux. If Linux refuses, the next set is used from then on. A set
// gives the same bits on every machine; the results of two sets differ by rounding. An unknown or unavailable name is an Error.
std::string_view kernel_instruction_set();
void set_kernel_instruction_set(std::string_view name);  // "" restores the default. Call it only while no operation runs.

}  // namespace polyhead
#pragma GCC visibility pop
