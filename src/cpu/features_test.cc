#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "polyhead/device.h"
#include "polyhead/executor.h"

namespace polyhead {
namespace {

TEST(Device, CountsProcessors) {
  const Cpu cpu = detect_cpu();
  EXPECT_GE(cpu.usable, 1);
  EXPECT_GE(cpu.online, cpu.usable);
  EXPECT_EQ(num_threads(), cpu.usable);
}

TEST(Device, CachesGrowWithTheirLevel) {
  const Cpu cpu = detect_cpu();
  for (const CpuCache& cache : cpu.caches) {
    EXPECT_GT(cache.bytes, 0);
    EXPECT_TRUE(cache.kind == "data" || cache.kind == "instruction" || cache.kind == "unified") << cache.kind;
    EXPECT_LE(cache.shared_by, cpu.online);
    for (const CpuCache& other : cpu.caches) EXPECT_TRUE(cache.level >= other.level || cache.bytes <= other.bytes);
  }
}

TEST(Device, RowsAreNamedOnceAndImplyEachOther) {
  const Cpu cpu = detect_cpu();
  std::set<std::string_view> names;
  for (const InstructionSet& row : cpu.instruction_sets) EXPECT_TRUE(names.insert(row.name).second) << row.name;
  EXPECT_FALSE(has_instruction_set(cpu, "none such"));
  const auto has = [&](std::string_view name) { return has_instruction_set(cpu, name); };
  for (const auto& [narrow, wide] : std::initializer_list<std::pair<const char*, const char*>>{
           {"avx2", "avx512f"}, {"fma", "avx512f"}, {"avx512f", "avx512bw"}, {"avx512f", "avx512vl"}, {"amx_tile", "amx_bf16"}}) {
    EXPECT_TRUE(!has(wide) || has(narrow)) << wide << " without " << narrow;
  }
}

#if defined(__x86_64__)
TEST(Device, EveryX8664MachineHasSse2) { EXPECT_TRUE(has_instruction_set(detect_cpu(), "sse2")); }

// Linux reads the same registers by its own code and spells the names as we do.
TEST(Device, AgreesWithTheKernel) {
  std::ifstream file("/proc/cpuinfo");
  std::string line, name;
  std::set<std::string> flags;
  while (std::getline(file, line) && (flags.empty() || name.empty())) {
    const auto value = line.find(": ");
    if (value == std::string::npos) continue;
    if (line.starts_with("model name")) name = line.substr(value + 2);
    if (line.starts_with("flags")) {
      std::istringstream words(line.substr(value + 2));
      for (std::string word; words >> word;) flags.insert(word);
    }
  }
  if (flags.empty()) GTEST_SKIP() << "no /proc/cpuinfo";
  const Cpu cpu = detect_cpu();
  EXPECT_EQ(cpu.name, name);
  for (const InstructionSet& row : cpu.instruction_sets) EXPECT_EQ(row.available, flags.contains(std::string(row.name))) << row.name;
}
#endif

}  // namespace
}  // namespace polyhead
