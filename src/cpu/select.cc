#include "cpu/select.h"

#include <array>
#include <atomic>
#include <cstdlib>

#include "core/text.h"
#include "cpu/instruction_sets.h"

namespace polyhead {
namespace cpu {
namespace {

std::atomic<const KernelSet*> forced{nullptr};

// Reads the environment once: a later change must not switch kernels in the middle of a program.
const KernelSet& preferred() {
  static const KernelSet& set = []() -> const KernelSet& {
    const char* name = std::getenv("POLYHEAD_ISA");
    return select_kernels(kernel_sets(), this_cpu(), name == nullptr ? "" : name);
  }();
  return set;
}

}  // namespace

const Cpu& this_cpu() {
  static const Cpu cpu = detect_cpu();
  return cpu;
}

std::span<const KernelSet> kernel_sets() {
  enum : std::size_t {  // places
#define POLYHEAD_ISA_ROW(name, base, needs) place_of_##name,
#include "cpu/isa_rows.h"
#undef POLYHEAD_ISA_ROW
  };
#define POLYHEAD_ISA_ROW(name, base, needs) KernelSet{#name, needs, place_of_##name},
  static constexpr KernelSet sets[] = {
#include "cpu/isa_rows.h"
  };
#undef POLYHEAD_ISA_ROW
  return sets;
}

std::string missing_for(const KernelSet& set, const Cpu& cpu) {
  std::string missing;
  for (std::size_t at = 0; at < set.needs.size();) {
    const std::size_t end = std::min(set.needs.find(' ', at), set.needs.size());
    const std::string_view need = set.needs.substr(at, end - at);
    if (!has_instruction_set(cpu, need)) append(missing, cat(missing.empty() ? "" : " ", need));
    at = end + 1;
  }
  return missing;
}

// Whether the operating system lets this process run the set.
static bool is_permitted(const KernelSet& set) { return set.needs.find("amx_tile") == std::string_view::npos || ask_for_tiles(); }

const KernelSet& select_kernels(std::span<const KernelSet> sets, const Cpu& cpu, std::string_view wanted) {
  std::string names;
  for (const KernelSet& set : sets) {
    const std::string missing = missing_for(set, cpu);
    if (wanted.empty() && missing.empty() && is_permitted(set)) return set;
    if (set.name == wanted) {
      if (missing.empty() && is_permitted(set)) return set;
      if (missing.empty()) fail(ErrorCode::unsupported, "the instruction set '", wanted, "' was asked for and the operating system gives this process no AMX tiles");
      fail(ErrorCode::unsupported, "the instruction set '", wanted, "' was asked for and this processor lacks: ", missing);
    }
    append(names, cat(names.empty() ? "" : ", ", set.name));
  }
  fail(ErrorCode::invalid_argument, "there are no kernels for the instruction set '", wanted, "'; there are: ", names);
}

const KernelSet& current_kernels() {
  const KernelSet* set = forced.load(std::memory_order_acquire);
  return set != nullptr ? *set : preferred();
}

}  // namespace cpu

std::vector<KernelInstructionSet> kernel_instruction_sets() {
  std::vector<KernelInstructionSet> sets;
  for (const cpu::KernelSet& set : cpu::kernel_sets())
    sets.push_back({set.name, set.needs, cpu::missing_for(set, cpu::this_cpu()).empty()});
  return sets;
}

std::string_view kernel_instruction_set() { return cpu::current_kernels().name; }

void set_kernel_instruction_set(std::string_view name) {
  cpu::forced.store(name.empty() ? nullptr : &cpu::select_kernels(cpu::kernel_sets(), cpu::this_cpu(), name), std::memory_order_release);
}

}  // namespace polyhead
