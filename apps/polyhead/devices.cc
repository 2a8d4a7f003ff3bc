#include <algorithm>
#include <memory>
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
#include "words.h"

namespace polyhead::app {
namespace {

// Caches are told in powers of 1024, as processors are sold: "32 KiB".
std::string cache_size(std::int64_t bytes) {
  constexpr std::int64_t kKibi = 1024, kMebi = kKibi * kKibi;
  if (bytes >= kMebi && bytes % (kMebi / 4) == 0) return cat(static_cast<double>(bytes) / kMebi, " MiB");
  return bytes % kKibi == 0 ? cat(bytes / kKibi, " KiB") : cat(bytes, " B");
}

std::string as_text(const Cpu& cpu, std::size_t width) {
  std::string text;
  const auto row = [&](std::string_view name, std::string_view value) {
    constexpr std::size_t kName = 16;
    const std::string lines = wrap(printable(value), width, kName);
    append(text, cat(fit(name, kName), std::string_view(lines).substr(std::min(kName, lines.size()))));
  };
  row("processor", cat(cpu.name.empty() ? "(it does not say its name)" : cpu.name, ", ", cpu.architecture));
  row("threads", cat(num_threads(), " (", cpu.online, " logical processors are on, ", cpu.usable, " may be used)"));
  for (const CpuCache& cache : cpu.caches) {
    row(cat("L", cache.level, cache.kind == "unified" ? "" : " " + cache.kind),
        cat(cache_size(cache.bytes), cache.shared_by > 0 ? cat(", shared by ", counted(cache.shared_by, "logical processor")) : ""));
  }
  if (!cpu.instruction_sets.empty()) append(text, "\nInstruction sets\n");
  for (const InstructionSet& set : cpu.instruction_sets) row(cat("  ", set.name), cat(set.available ? "yes  " : "no   ", set.adds));
  append(text, "\nKernels, the preferred first\n");
  for (const KernelInstructionSet& set : kernel_instruction_sets()) {
    row(cat("  ", set.name),
        cat(set.name == kernel_instruction_set() ? "used " : set.available ? "yes  " : "no   ", set.needs.empty() ? "needs nothing" : cat("needs ", set.needs)));
  }
  append(text, "\nBackends, the preferred first\n");
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
                   {"polyhead devices --json | jq .backends", "for other programs"}},
      .notes =
          "JSON: {processor, architecture, online, usable, threads, caches: [{level, kind, bytes, shared_by}], instruction_sets: [{name, "
          "available, adds}], kernels: [{name, needs, available, used}], backends}; shared_by is null where the system does not tell.\n"
          "The environment variable POLYHEAD_ISA names the kernels to use; one that this processor cannot run is an error.\n",
      .run =
          [json] {
            const Cpu cpu = detect_cpu();
            *json ? print_json(as_json(cpu)) : print(as_text(cpu, terminal_width(Stream::out)));
          },
  };
}

}  // namespace polyhead::app
