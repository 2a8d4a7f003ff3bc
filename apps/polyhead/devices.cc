#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "core/text.h"
#include "format.h"
#include "json.h"
#include "polyhead/device.h"
#include "polyhead/executor.h"
#include "polyhead/sdpa.h"
#include "terminal.h"
#include "text_layout.h"

namespace polyhead::app {
namespace {

// In powers of 1024, as data sheets of processors do: "32 KiB".
std::string cache_size(std::int64_t bytes) {
  constexpr std::int64_t kKibi = 1024, kMebi = kKibi * kKibi;
  if (bytes >= kMebi && bytes % (kMebi / 4) == 0) return cat(static_cast<double>(bytes) / kMebi, " MiB");
  return bytes % kKibi == 0 ? cat(bytes / kKibi, " KiB") : cat(bytes, " B");
}

std::string as_text(const Cpu& cpu, std::size_t width) {
  std::string text;
  const auto row = [&](std::string_view name, std::string_view value) {
    append(text, hang(name, printable(value), 16, width));
  };
  row("processor", cat(cpu.name.empty() ? "(unknown name)" : cpu.name, ", ", cpu.architecture));
  row("threads", cat(num_threads(), " (", cpu.online, " logical processors online, ", cpu.usable, " usable by this process)"));
  for (const CpuCache& cache : cpu.caches) {
    row(cat("L", cache.level, cache.kind == "unified" ? "" : " " + cache.kind),
        cat(cache_size(cache.bytes), cache.shared_by > 0 ? cat(", shared by ", counted(cache.shared_by, "logical processor")) : ""));
  }
  for (const auto& [level, name] : {std::pair(1, "L1 data"), std::pair(2, "L2"), std::pair(3, "L3")}) {
    const auto found = [level = level](const CpuCache& cache) { return cache.level == level && cache.kind != "instruction"; };
    if (std::none_of(cpu.caches.begin(), cpu.caches.end(), found)) row(name, "unknown");
  }
  if (!cpu.instruction_sets.empty()) append(text, "\nInstruction sets\n");
  for (const InstructionSet& set : cpu.instruction_sets) row(cat("  ", set.name), cat(set.available ? "yes  " : "no   ", set.adds));
  append(text, "\nKernels, best first\n");
  for (const KernelInstructionSet& set : kernel_instruction_sets()) {
    row(cat("  ", set.name),
        cat(set.name == kernel_instruction_set() ? "used " : set.available ? "yes  " : "no   ", set.needs.empty() ? "needs nothing" : cat("needs ", set.needs)));
  }
  append(text, "\nBackends, best first\n");
  for (const Backend* backend : backends()) append(text, cat("  ", backend_name(*backend), "\n"));
  return text;
}

Json as_json(const Cpu& cpu) {
  Json sets = Json::array(), caches = Json::array(), names = Json::array();
  for (const InstructionSet& set : cpu.instruction_sets)
    sets.push_back({{"name", set.name}, {"available", set.available}, {"adds", set.adds}});
  for (const CpuCache& cache : cpu.caches) {
    caches.push_back({{"level", cache.level},
                      {"kind", cache.kind},
                      {"bytes", cache.bytes},
                      {"shared_by", cache.shared_by > 0 ? Json(cache.shared_by) : Json(nullptr)}});
  }
  for (const Backend* backend : backends()) names.push_back(backend_name(*backend));
  Json kernels = Json::array();
  for (const KernelInstructionSet& set : kernel_instruction_sets()) {
    kernels.push_back({{"name", set.name}, {"needs", set.needs}, {"available", set.available}, {"used", set.name == kernel_instruction_set()}});
  }
  return {{"processor", cpu.name},    {"architecture", cpu.architecture},
          {"online", cpu.online},     {"usable", cpu.usable},
          {"threads", num_threads()}, {"caches", caches},
          {"instruction_sets", sets}, {"kernels", kernels},
          {"backends", names}};
}

}  // namespace

Subcommand declare_devices(CLI::App& parser) {
  const auto json = std::make_shared<bool>(false);
  parser.add_flag("--json", *json, "machine-readable, one object on one line");
  return {
      .examples = {{"polyhead devices", "the processor, its caches and instruction sets, and the backends"},
                   {"polyhead devices --json | jq .backends", "JSON for other programs"}},
      .notes =
          "JSON: {processor, architecture, online, usable, threads, caches: [{level, kind, bytes, shared_by}], instruction_sets: [{name, "
          "available, adds}], kernels: [{name, needs, available, used}], backends}; shared_by is null if the system does not say it.\n"
          "The environment variable POLYHEAD_ISA selects the kernels; it is an error if this processor cannot run them.\n",
      .run =
          [json] {
            const Cpu cpu = detect_cpu();
            *json ? print_json(as_json(cpu)) : print(as_text(cpu, terminal_width(Stream::out)));
          },
  };
}

}  // namespace polyhead::app
