// Which kernels a machine gets, asked about machines that this one is not.
#include "cpu/select.h"

#include <gmock/gmock.h>

#include <sstream>

#include "support/compare.h"

namespace polyhead::test {
namespace {

using testing::HasSubstr;

Cpu machine(std::initializer_list<std::string_view> available) {
  Cpu cpu;
  for (const std::string_view name : {"sse2", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}) {
    cpu.instruction_sets.push_back({name, "", std::find(available.begin(), available.end(), name) != available.end()});
  }
  return cpu;
}

const cpu::KernelSet kSets[] = {{"wide", "avx2 fma avx512f avx512vl"}, {"middle", "avx2 fma"}, {"portable", ""}};

TEST(Select, TakesTheFirstThatTheProcessorHas) {
  EXPECT_EQ(cpu::select_kernels(kSets, machine({"avx2", "fma", "avx512f", "avx512vl"}), "").name, "wide");
  EXPECT_EQ(cpu::select_kernels(kSets, machine({"avx2", "fma", "avx512f"}), "").name, "middle");
  EXPECT_EQ(cpu::select_kernels(kSets, machine({"avx2"}), "").name, "portable");
  EXPECT_EQ(cpu::select_kernels(kSets, Cpu{}, "").name, "portable");
}

TEST(Select, AForcedSetIsTakenOrRefusedButNeverReplaced) {
  EXPECT_EQ(cpu::select_kernels(kSets, machine({"avx2", "fma", "avx512f", "avx512vl"}), "portable").name, "portable");
  EXPECT_EQ(cpu::select_kernels(kSets, machine({"avx2", "fma"}), "middle").name, "middle");
  EXPECT_THAT(error_message([] { cpu::select_kernels(kSets, machine({"avx2", "fma"}), "wide"); }),
              testing::AllOf(HasSubstr("'wide'"), HasSubstr("avx512f avx512vl")));
  EXPECT_THAT(error_message([] { cpu::select_kernels(kSets, machine({}), "neon"); }),
              testing::AllOf(HasSubstr("'neon'"), HasSubstr("wide, middle, portable")));
}

#if defined(__x86_64__)
// The kernels of this build, for machines of every generation: the tests of a set run where it is, and the choice is tested everywhere.
TEST(Select, KnownMachines) {
  if (cpu::kernel_sets().front().name != "avx512_bf16") GTEST_SKIP() << "this build has kernels of some instruction sets only";
  struct Row {
    const char* name;
    std::string_view sets, best;
  };
  for (const Row& row : {Row{"Nehalem", "sse2", "portable"}, Row{"Sandy Bridge, without AVX2", "sse2 f16c", "portable"}, Row{"Haswell", "sse2 avx2 fma f16c", "avx2"},
                         Row{"Zen 3", "sse2 avx2 fma f16c", "avx2"}, Row{"Knights Landing", "sse2 avx2 fma f16c avx512f", "avx2"},
                         Row{"Skylake-SP", "sse2 avx2 fma f16c avx512f avx512bw avx512dq avx512vl", "avx512"},
                         Row{"Zen 4", "sse2 avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16", "avx512_bf16"},
                         Row{"Sapphire Rapids", "sse2 avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_bf16 amx_int8", "avx512_bf16"}}) {
    Cpu cpu;
    std::istringstream words{std::string(row.sets)};
    std::vector<std::string> names;
    for (std::string word; words >> word;) names.push_back(word);
    for (const std::string& name : names) cpu.instruction_sets.push_back({name, "", true});
    EXPECT_EQ(cpu::select_kernels(cpu::kernel_sets(), cpu, "").name, row.best) << row.name;
  }
}
#endif

TEST(Select, EverythingThatARowNeedsIsAskedOfTheProcessor) {
  const Cpu here = detect_cpu();
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    for (const InstructionSet& row : here.instruction_sets) {  // a machine that lacks one thing
      Cpu other = here;
      for (InstructionSet& changed : other.instruction_sets) changed.available = changed.name != row.name;
      const bool needed = (" " + std::string(set.needs) + " ").find(" " + std::string(row.name) + " ") != std::string::npos;
      EXPECT_EQ(cpu::missing_for(set, other), needed ? row.name : "") << set.name;
    }
  }
  EXPECT_EQ(cpu::kernel_sets().back().needs, "");
}

TEST(Select, SettingOneIsSeenAndUndone) {
  const std::string_view before = kernel_instruction_set();
  const std::string_view last = kernel_instruction_sets().back().name;
  set_kernel_instruction_set(last);
  EXPECT_EQ(kernel_instruction_set(), last);
  EXPECT_NE(error_message([] { set_kernel_instruction_set("none such"); }), "");
  EXPECT_EQ(kernel_instruction_set(), last);
  set_kernel_instruction_set("");
  EXPECT_EQ(kernel_instruction_set(), before);
}

}  // namespace
}  // namespace polyhead::test
