#include "cpu/instruction_sets.h"

#include <cerrno>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace polyhead::cpu {

#if defined(__x86_64__)
namespace {

enum Register : std::uint8_t { eax, ebx, ecx, edx };

// Registers that the operating system must save at a task switch, as bits of XCR0 (Intel SDM volume 1, section 13.3): 256-bit, 512-bit and tile registers.
constexpr std::uint64_t kNone = 0, kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;

// One row for each instruction set: its bit in the answer of cpuid (Intel SDM volume 2, CPUID), and the registers that the operating system must save.
struct Row {
  std::string_view name, adds;
  std::uint32_t leaf, subleaf;
  Register in;
  int bit;
  std::uint64_t state;
};

constexpr Row kRows[] = {
    {"sse2", "4 float32 a register; every x86-64 machine", 1, 0, edx, 26, kNone},
    {"avx2", "8 float32 a register", 7, 0, ebx, 5, kYmm},
    {"fma", "multiply and add in one rounding", 1, 0, ecx, 12, kYmm},
    {"f16c", "float16 storage", 1, 0, ecx, 29, kYmm},
    {"avx512f", "16 float32 a register, 32 registers, masks", 7, 0, ebx, 16, kZmm},
    {"avx512bw", "masks and shuffles of 8 and 16 bits", 7, 0, ebx, 30, kZmm},
    {"avx512dq", "64-bit products, more conversions", 7, 0, ebx, 17, kZmm},
    {"avx512vl", "masks on shorter registers", 7, 0, ebx, 31, kZmm},
    {"avx512_vnni", "8-bit dot products", 7, 0, ecx, 11, kZmm},
    {"avx512_bf16", "bfloat16 dot products", 7, 1, eax, 5, kZmm},
    {"avx512_fp16", "float16 arithmetic", 7, 0, edx, 23, kZmm},
    {"amx_tile", "tiles of 16 rows x 64 bytes", 7, 0, edx, 24, kTiles},
    {"amx_bf16", "bfloat16 tile products", 7, 0, edx, 22, kTiles},
    {"amx_int8", "8-bit tile products", 7, 0, edx, 25, kTiles},
};

struct Answer {
  unsigned int registers[4] = {};
};

// Returns the answer of the cpuid instruction, or zeros if the processor does not have this leaf.
Answer cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
  Answer a;
  if (__get_cpuid_count(leaf, subleaf, &a.registers[eax], &a.registers[ebx], &a.registers[ecx], &a.registers[edx]) == 0) return {};
  return a;
}

bool bit(const Answer& answer, Register in, int position) { return (answer.registers[in] >> position & 1u) != 0; }

std::uint64_t saved_state() {
  constexpr int kOsxsave = 27;
  if (!bit(cpuid(1, 0), ecx, kOsxsave)) return 0;
  std::uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

}  // namespace

std::string request_amx_permission() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return {};
  if (errno == ENOSPC) return "a thread's alternate signal stack (sigaltstack) is too small for AMX tiles, so Linux refuses them to this process";
#endif
  return "the operating system gives this process no AMX tiles";
}

std::string processor_vendor() {
  const Answer answer = cpuid(0, 0);
  std::string vendor;
  for (const Register part : {ebx, edx, ecx}) {
    for (int byte = 0; byte < 4; ++byte) vendor += static_cast<char>(answer.registers[part] >> (8 * byte) & 0xff);
  }
  return vendor;
}

std::vector<InstructionSet> instruction_sets() {
  const std::uint64_t saved = saved_state();
  std::vector<InstructionSet> sets;
  for (const Row& row : kRows) {
    // Subleaf 1 of leaf 7 exists only if subleaf 0 says so. Without this check, a processor that lacks the subleaf would return data of another leaf.
    const bool exists = row.subleaf == 0 || cpuid(row.leaf, 0).registers[eax] >= row.subleaf;
    sets.push_back({row.name, row.adds, exists && bit(cpuid(row.leaf, row.subleaf), row.in, row.bit) && (saved & row.state) == row.state});
  }
  return sets;
}

std::string processor_name() {
  std::string name;
  for (std::uint32_t leaf = 0x80000002; leaf <= 0x80000004; ++leaf) {  // the three leaves hold the processor's name: 48 characters, padded with zeros
    const Answer answer = cpuid(leaf, 0);
    for (const unsigned int part : answer.registers) {
      for (int byte = 0; byte < 4; ++byte) {
        if (const char c = static_cast<char>(part >> (8 * byte)); c != 0) name += c;
      }
    }
  }
  const auto first = name.find_first_not_of(' ');
  return first == std::string::npos ? "" : name.substr(first, name.find_last_not_of(' ') - first + 1);
}

#elif defined(__aarch64__)

std::string request_amx_permission() { return "this architecture has no AMX tiles"; }
std::string processor_vendor() { return {}; }
std::vector<InstructionSet> instruction_sets() { return {{"neon", "4 float32 a register; every AArch64 machine", true}}; }
std::string processor_name() { return {}; }

#elif defined(__wasm__)

std::string request_amx_permission() { return "WebAssembly has no AMX tiles"; }
std::string processor_vendor() { return {}; }
std::vector<InstructionSet> instruction_sets() { return {{"simd128", "4 float32 a register; a WebAssembly module that uses it loads only on engines that have it", true}}; }
std::string processor_name() { return {}; }

#else

std::string request_amx_permission() { return "this architecture has no AMX tiles"; }
std::string processor_vendor() { return {}; }
std::vector<InstructionSet> instruction_sets() { return {}; }
std::string processor_name() { return {}; }

#endif

}  // namespace polyhead::cpu
