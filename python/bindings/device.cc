#include "polyhead/device.h"

#include <nanobind/stl/string.h>

#include "bind.h"
#include "options.h"
#include "polyhead/executor.h"

namespace polyhead::python {
namespace {

namespace nb = nanobind;

ByName devices() {
  const Cpu cpu = detect_cpu();
  nb::dict sets, result;
  for (const InstructionSet& set : cpu.instruction_sets) sets[std::string(set.name).c_str()] = set.available;
  result["name"] = cpu.name;
  result["architecture"] = std::string(cpu.architecture);
  result["online"] = cpu.online;
  result["usable"] = cpu.usable;
  result["threads"] = num_threads();
  nb::list caches;
  for (const CpuCache& cache : cpu.caches) {
    nb::dict facts;
    facts["level"] = cache.level;
    facts["kind"] = cache.kind;
    facts["bytes"] = cache.bytes;
    facts["shared_by"] = cache.shared_by > 0 ? nb::object(nb::int_(cache.shared_by)) : nb::object(nb::none());
    caches.append(facts);
  }
  result["caches"] = caches;
  result["instruction_sets"] = sets;
  nb::list kernels;
  nb::dict why_not_used;
  for (const KernelInstructionSet& set : kernel_instruction_sets()) {
    kernels.append(std::string(set.name));
    if (!set.why_not_used.empty()) why_not_used[std::string(set.name).c_str()] = set.why_not_used;
  }
  result["kernels"] = kernels;
  result["why_not_used"] = why_not_used;
  result["kernel"] = std::string(kernel_instruction_set());
  return result;
}

}  // namespace

void bind_device(nb::module_& m) {
  m.def("device", &devices);
  m.def("num_threads", [] { return num_threads(); });
  m.def("set_num_threads", [](nb::handle count) { set_num_threads(static_cast<int>(read_integer(count, "count", 1, kMostThreads))); }, any("count"));
}

}  // namespace polyhead::python
