#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "core/ascii.h"
#include "core/parallel.h"
#include "core/process_pool.h"
#include "cpu/caches.h"
#include "cpu/instruction_sets.h"
#include "polyhead/device.h"

namespace polyhead {
namespace {

// Returns the first line of a small text file, or an empty text if the file cannot be read.
std::string first_line(const std::string& path) {
  std::string line;
  if (std::FILE* file = std::fopen(path.c_str(), "r")) {
    for (int c; (c = std::fgetc(file)) != EOF && c != '\n';) line += static_cast<char>(c);
    std::fclose(file);
  }
  return line;
}

// Reads a size in bytes: a decimal number, optionally with the unit K, M or G (powers of 1024) as in Linux' cache sizes ("48K"). Returns 0 for any other unit.
std::int64_t parse_bytes(const std::string& text) {
  std::int64_t value = 0;
  for (const char c : text) {
    if ('0' <= c && c <= '9') {
      value = value * 10 + (c - '0');
    } else {
      return c == 'K' ? value << 10 : c == 'M' ? value << 20 : c == 'G' ? value << 30 : 0;
    }
  }
  return value;
}

// Returns the number of processors in a list such as "0-3,8".
int count_list(const std::string& text) {
  int count = 0, number = 0, first = -1;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if ('0' <= c && c <= '9') {
      number = number * 10 + (c - '0');
    } else if (c == '-') {
      first = number;
      number = 0;
    } else if (c == ',' && i > 0) {
      count += first < 0 ? 1 : number - first + 1;
      first = -1;
      number = 0;
    }
  }
  return count;
}

// Returns the cache sizes that the C library reports, for operating systems that do not list caches in /sys.
std::vector<CpuCache> library_caches() {
  std::vector<CpuCache> caches;
#ifdef _SC_LEVEL1_DCACHE_SIZE
  const auto add = [&](int level, const char* kind, int name) {
    const long bytes = sysconf(name);
    if (bytes > 0) caches.push_back({level, kind, bytes, 0});
  };
  add(1, "data", _SC_LEVEL1_DCACHE_SIZE);
  add(1, "instruction", _SC_LEVEL1_ICACHE_SIZE);
  add(2, "unified", _SC_LEVEL2_CACHE_SIZE);
  add(3, "unified", _SC_LEVEL3_CACHE_SIZE);
#endif
  return caches;
}

}  // namespace

std::vector<CpuCache> cpu::listed_caches(const std::string& folder) {
  std::vector<CpuCache> caches;
  for (int index = 0; index < 16; ++index) {
    const std::string files = folder + "/index" + std::to_string(index) + "/";
    const std::string level = first_line(files + "level");
    if (level.empty()) break;
    std::string kind = first_line(files + "type");
    std::transform(kind.begin(), kind.end(), kind.begin(),
                   lower_ascii);
    const std::int64_t bytes = parse_bytes(first_line(files + "size"));
    if (bytes > 0) caches.push_back({static_cast<int>(parse_bytes(level)), kind, bytes, count_list(first_line(files + "shared_cpu_list"))});
  }
  return caches;
}

std::vector<CpuCache> cpu::caches_of(const DescribedMachine& machine) {
  std::vector<CpuCache> caches;
  if (machine.data_bytes > 0) caches.push_back({1, "data", machine.data_bytes, 1});
  if (machine.second_bytes > 0) caches.push_back({2, "unified", machine.second_bytes, 1});
  if (machine.third_bytes > 0) caches.push_back({3, "unified", machine.third_bytes, machine.processors});
  return caches;
}

Cpu detect_cpu() {
  Cpu result{.name = cpu::processor_name(), .vendor = cpu::processor_vendor(), .architecture = cpu::kArchitecture, .instruction_sets = cpu::instruction_sets()};
  result.usable = usable_processors();
  if (const DescribedMachine* machine = described_machine()) {
    result.caches = cpu::caches_of(*machine);
    result.online = machine->processors;
    return result;
  }
  result.caches = cpu::listed_caches("/sys/devices/system/cpu/cpu0/cache");
  if (result.caches.empty()) result.caches = library_caches();
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  result.online = online > 0 ? static_cast<int>(online) : hardware_threads();
  return result;
}

bool has_instruction_set(const Cpu& cpu, std::string_view name) {
  return std::any_of(cpu.instruction_sets.begin(), cpu.instruction_sets.end(),
                     [&](const InstructionSet& row) { return row.name == name && row.available; });
}

}  // namespace polyhead
