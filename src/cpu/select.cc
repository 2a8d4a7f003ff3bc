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
std::atomic<bool> tiles_are_refused{false};

bool has_tiles(const KernelSet& set) { return set.needs.find("amx_tile") != std::string_view::npos; }

// Requests AMX tiles from the operating system, in the first call only. Returns the reason of a refusal, or an empty text.
const std::string& refusal_of_tiles() {
  static const std::string reason = request_amx_permission();
  return reason;
}

// Returns `set`. Error if the set needs AMX tiles and the operating system refuses them.
const KernelSet& permitted(const KernelSet& set) {
  if (has_tiles(set) && !refusal_of_tiles().empty()) fail(ErrorCode::unsupported, "the instruction set '", set.name, "' was asked for and ", refusal_of_tiles());
  return set;
}

struct Preferred {
  const KernelSet& set;
  const KernelSet& without_tiles;
  bool asked_for;
};

// Returns the set that POLYHEAD_ISA names or the processor prefers, with and without AMX tiles. The environment is read once, because a later change must not
// switch kernels in a running program.
const Preferred& preferred() {
  static const Preferred sets = []() -> Preferred {
    const char* name = std::getenv("POLYHEAD_ISA");
    if (name != nullptr && *name != '\0') {
      const KernelSet& set = permitted(select_kernels(kernel_sets(), this_cpu(), name));
      return {set, set, true};
    }
    return {select_kernels(kernel_sets(), this_cpu(), ""), select_kernels(kernel_sets(), this_cpu(), "", Tiles::refused), false};
  }();
  return sets;
}

}  // namespace

const Cpu& this_cpu() {
  static const Cpu cpu = detect_cpu();
  return cpu;
}

std::span<const KernelSet> kernel_sets() {
  enum : std::size_t {  // indices of the sets in kernel_sets()
#define POLYHEAD_ISA_ROW(name, base, needs, vendor) place_of_##name,
#include "cpu/isa_rows.h"
#undef POLYHEAD_ISA_ROW
  };
#define POLYHEAD_ISA_ROW(name, base, needs, vendor) KernelSet{#name, needs, place_of_##name, vendor},
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

std::string why_not_preferred(const KernelSet& set, const Cpu& cpu) {
  if (set.vendor == "none") return "it is for tests";
  if (const std::string missing = missing_for(set, cpu); !missing.empty()) return cat("the processor lacks ", missing);
  if (set.vendor.empty() || set.vendor == cpu.vendor) return {};
  return cat("it is the default on ", set.vendor, " processors only; on others exact products are at least as fast");
}

const KernelSet& select_kernels(std::span<const KernelSet> sets, const Cpu& cpu, std::string_view wanted, Tiles tiles) {
  std::string names;
  for (const KernelSet& set : sets) {
    if (wanted.empty() && why_not_preferred(set, cpu).empty() && (tiles == Tiles::allowed || !has_tiles(set))) return set;
    if (set.name == wanted) {
      const std::string missing = missing_for(set, cpu);
      if (!missing.empty()) fail(ErrorCode::unsupported, "the instruction set '", wanted, "' was asked for and this processor lacks: ", missing);
      return set;
    }
    append(names, cat(names.empty() ? "" : ", ", set.name));
  }
  fail(ErrorCode::invalid_argument, "there are no kernels for the instruction set '", wanted, "'; there are: ", names);
}

const KernelSet& current_kernels() {
  if (const KernelSet* set = forced.load(std::memory_order_acquire)) return *set;
  return tiles_are_refused.load(std::memory_order_relaxed) ? preferred().without_tiles : preferred().set;
}

const KernelSet& current_kernels_for_pairs() {
  if (has_tiles(current_kernels()) && !refusal_of_tiles().empty()) tiles_are_refused.store(true, std::memory_order_relaxed);
  return current_kernels();
}

namespace {

std::string why_not_used(const KernelSet& set) {
  const KernelSet& current = current_kernels();
  if (set.place == current.place) return {};
  if (const std::string reason = why_not_preferred(set, this_cpu()); !reason.empty()) return reason;
  if (has_tiles(set) && tiles_are_refused.load(std::memory_order_relaxed)) return refusal_of_tiles();
  const bool asked_for = forced.load(std::memory_order_acquire) != nullptr || preferred().asked_for;
  return cat(current.name, asked_for ? " was asked for" : " is preferred");
}

}  // namespace

}  // namespace cpu

std::vector<KernelInstructionSet> kernel_instruction_sets() {
  std::vector<KernelInstructionSet> sets;
  for (const cpu::KernelSet& set : cpu::kernel_sets())
    sets.push_back({set.name, set.needs, cpu::missing_for(set, cpu::this_cpu()).empty(), cpu::why_not_used(set)});
  return sets;
}

std::string_view kernel_instruction_set() { return cpu::current_kernels().name; }

void set_kernel_instruction_set(std::string_view name) {
  cpu::forced.store(name.empty() ? nullptr : &cpu::permitted(cpu::select_kernels(cpu::kernel_sets(), cpu::this_cpu(), name)), std::memory_order_release);
}

}  // namespace polyhead
