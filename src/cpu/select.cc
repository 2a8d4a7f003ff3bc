#include "cpu/select.h"

#include <array>
#include <atomic>
#include <cstdlib>

#include "core/text.h"

// The kernels' functions, declared for every row.
#define POLYHEAD_ISA_ROW(name, needs)                                                      \
  namespace polyhead::cpu::name {                                                          \
  std::int64_t sdpa_forward_scratch(const ForwardTask& task);                              \
  void sdpa_forward(const ForwardTask& task, void* scratch);                               \
  void sdpa_merge(const ForwardTask& task, std::int64_t parts);                            \
  std::int64_t sdpa_backward_scratch(const BackwardTask& task);                            \
  void sdpa_backward(const BackwardTask& task, void* scratch);                             \
  std::int64_t attention_maps_scratch(const MapsTask& task);                               \
  void attention_maps(const MapsTask& task, void* scratch);                                \
  std::int64_t gemm_panel_columns(DType dtype);                                            \
  void gemm_pack(const GemmTask& task, const PackedColumns& b, Range panels, Range terms); \
  std::int64_t gemm_scratch(const GemmTask& task, std::int64_t rows, std::int64_t terms);  \
  void gemm_multiply(const GemmTask& task, const GemmBlock& block, void* scratch);         \
  const Curves& curves();                                                                  \
  void normalise_row(const NormRow& row);                                                  \
  }
#include "cpu/isa_rows.h"
#undef POLYHEAD_ISA_ROW

namespace polyhead {
namespace cpu {
namespace {

#define POLYHEAD_ISA_ROW(name, needs)                                                                          \
  KernelSet{#name,                                                                                             \
            needs,                                                                                             \
            {name::sdpa_forward_scratch, name::sdpa_forward, name::sdpa_merge, name::sdpa_backward_scratch,    \
             name::sdpa_backward, name::attention_maps_scratch, name::attention_maps},                         \
            {name::gemm_panel_columns, name::gemm_pack, name::gemm_scratch, name::gemm_multiply},              \
            name::curves,                                                                                      \
            name::normalise_row},
constexpr KernelSet kSets[] = {
#include "cpu/isa_rows.h"
};
#undef POLYHEAD_ISA_ROW

std::atomic<const KernelSet*> forced{nullptr};

// Asking the processor takes tens of microseconds under a hypervisor.
const Cpu& this_cpu() {
  static const Cpu cpu = detect_cpu();
  return cpu;
}

// The environment is read once: a kernel must not change in the middle of a program.
const KernelSet& preferred() {
  static const KernelSet& set = []() -> const KernelSet& {
    const char* name = std::getenv("POLYHEAD_ISA");
    return select_kernels(kSets, this_cpu(), name == nullptr ? "" : name);
  }();
  return set;
}

}  // namespace

std::span<const KernelSet> kernel_sets() { return kSets; }

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

const KernelSet& select_kernels(std::span<const KernelSet> sets, const Cpu& cpu, std::string_view wanted) {
  std::string names;
  for (const KernelSet& set : sets) {
    const std::string missing = missing_for(set, cpu);
    if (wanted.empty() && missing.empty()) return set;
    if (set.name == wanted) {
      if (missing.empty()) return set;
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
