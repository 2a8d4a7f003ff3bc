#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "cpu/caches.h"
#include "polyhead/device.h"
#include "polyhead/executor.h"
#include "support/machines.h"
#include "support/temporary_folder.h"

namespace polyhead {
namespace {

TEST(Device, CountsProcessors) {
  const Cpu cpu = detect_cpu();
  EXPECT_GE(cpu.usable, 1);
  EXPECT_GE(cpu.online, cpu.usable);
  EXPECT_EQ(num_threads(), cpu.usable);
}

TEST(Device, CachesHaveASizeAndAKind) {
  const Cpu cpu = detect_cpu();
  for (const CpuCache& cache : cpu.caches) {
    EXPECT_GT(cache.bytes, 0);
    EXPECT_GE(cache.level, 1);
    EXPECT_TRUE(cache.kind == "data" || cache.kind == "instruction" || cache.kind == "unified") << cache.kind;
    EXPECT_GE(cache.shared_by, 0);
  }
}

// A temporary folder with the files of Linux' /sys/devices/system/cpu/cpu0/cache.
class CacheFolder : test::TemporaryFolder {
 public:
  void add(const char* level, const char* type, const char* size, const char* shared) {
    const std::filesystem::path files = *this / ("index" + std::to_string(count_++));
    std::filesystem::create_directory(files);
    for (const auto& [file, text] : {std::pair("level", level), std::pair("type", type), std::pair("size", size), std::pair("shared_cpu_list", shared)}) {
      if (text != nullptr) std::ofstream(files / file) << text << "\n";
    }
  }
  std::string text() const {
    std::string all;
    for (const CpuCache& cache : cpu::listed_caches(path().string())) {
      all += "L" + std::to_string(cache.level) + " " + cache.kind + " " + std::to_string(cache.bytes) + " by " + std::to_string(cache.shared_by) + "\n";
    }
    return all;
  }

 private:
  int count_ = 0;
};

TEST(Device, ReadsTheCachesOfOtherMachines) {
  CacheFolder server;
  server.add("1", "Data", "48K", "0,96");
  server.add("1", "Instruction", "32K", "0,96");
  server.add("2", "Unified", "2048K", "0,96");
  server.add("3", "Unified", "491520K", "0-47,96-143");
  EXPECT_EQ(server.text(), "L1 data 49152 by 2\nL1 instruction 32768 by 2\nL2 unified 2097152 by 2\nL3 unified 503316480 by 96\n");

  CacheFolder other;  // cases: a size in MiB, a missing list of the processors that share a cache, a missing size, a size that is not a number
  other.add("1", "Data", "64K", nullptr);
  other.add("2", "Unified", "1M", "0");
  other.add("3", "Unified", nullptr, "0-3");
  other.add("4", "Unified", "unknown", "0-3");
  EXPECT_EQ(other.text(), "L1 data 65536 by 0\nL2 unified 1048576 by 1\n");

  EXPECT_EQ(CacheFolder().text(), "");
  EXPECT_TRUE(cpu::listed_caches("/no such folder").empty());
}

TEST(Device, IsTheMachineThatATestDescribes) {
  test::for_each_machine([](const DescribedMachine& machine) {
    const Cpu cpu = detect_cpu();
    EXPECT_EQ(cpu.usable, machine.processors);
    EXPECT_EQ(cpu.online, machine.processors);
    EXPECT_EQ(num_threads(), machine.processors);
    std::int64_t known = 0;
    for (const CpuCache& cache : cpu.caches) known += cache.bytes;
    EXPECT_EQ(known, machine.data_bytes + machine.second_bytes + machine.third_bytes);
    EXPECT_FALSE(cpu.instruction_sets.empty() && cpu.architecture == "x86-64");
  });
  EXPECT_EQ(described_machine(), nullptr);
}

TEST(Device, InstructionSetsAreNamedOnceAndImplyNarrowerOnes) {
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

// Compares has_instruction_set() with /proc/cpuinfo, where Linux lists the instruction sets under the same names.
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
