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
#include "parser.h"
#include "polyhead/device.h"
#include "polyhead/executor.h"
#include "polyhead/sdpa.h"
#include "terminal.h"
#include "text_layout.h"

namespace polyhead::app {
namespace {

std::string as_text(const Cpu& cpu, std::size_t width) {
  std::string text;
  const auto row = [&](std::string_view name, std::string_view value) {
    append(text, hang(name, printable(value), 16, width));
  };
  row("processor", cat(cpu.name.empty() ? "(unknown name)" : cpu.name, ", ", cpu.architecture));
  row("threads", cat(num_threads(), " (", cpu.online, " logical processors online, ", cpu.usable, " usable by this process)"));
  for (const CpuCache& cache : cpu.caches) {
    row(cat("L", cache.level, cache.kind == "unified" ? "" : " " + cache.kind),
        cat(size_text(cache.bytes), cache.shared_by > 0 ? cat(", shared by ", counted(cache.shared_by, "logical processor")) : ""));
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
        cat(set.why_not_used.empty() ? "used " : set.available ? "yes  " : "no   ", set.needs.empty() ? "needs nothing" : cat("needs ", set.needs),
            set.why_not_used.empty() ? "" : cat("; not used: ", set.why_not_used)));
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
    kernels.push_back({{"name", set.name}, {"needs", set.needs}, {"available", set.available}, {"used", set.why_not_used.empty()}, {"why_not_used", set.why_not_used}});
  }
  return {{"processor", cpu.name},    {"architecture", cpu.architecture},
          {"online", cpu.online},     {"usable", cpu.usable},
          {"threads", num_threads()}, {"caches", caches},
          {"instruction_sets", sets}, {"kernels", kernels},
          {"backends", names}};
}

}  // namespace

Subcommand declare_devices(Parser& parser) {
  const auto json = std::make_shared<bool>(false);
  parser.add_flag("--json", *json, "machine-readable, one object on one line");
  return {
      .examples = {{"polyhead devices", "the processor, its caches and instruction sets, and the backends"},
                   {"polyhead devices --json | jq .backends", "JSON for other programs"}},
      .notes =
          "JSON: {processor, architecture, online, usable, threads, caches: [{level, kind, bytes, shared_by}], instruction_sets: [{name, "
          "available, adds}], kernels: [{name, needs, available, used, why_not_used}], backends}; shared_by is null if the system does not say it.\n"
          "The environment variable POLYHEAD_ISA selects the kernels; it is an error if this processor cannot run them.\n",
      .run =
          [json] {
            const Cpu cpu = detect_cpu();
            *json ? print_json(as_json(cpu)) : print(as_text(cpu, terminal_width(Stream::out)));
          },
  };
}

}  // namespace polyhead::app
