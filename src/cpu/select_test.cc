// Tests which kernels are chosen on machines that the test describes.
#include "cpu/select.h"

#include <gmock/gmock.h>

#include <array>
#include <set>
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
// Returns a Cpu of the given vendor with the given instruction sets.
Cpu known(std::string_view vendor, std::string_view sets) {
  static std::set<std::string, std::less<>> names;  // owns the names that the returned Cpu points to
  Cpu cpu;
  cpu.vendor = vendor;
  std::istringstream words{std::string(sets)};
  for (std::string word; words >> word;) cpu.instruction_sets.push_back({*names.insert(word).first, "", true});
  return cpu;
}

constexpr std::string_view kSkylake = "sse2 avx2 fma f16c avx512f avx512bw avx512dq avx512vl", kPairs = "sse2 avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16",
                           kTiles = "sse2 avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_bf16 amx_int8";

// Tests the choice among the kernels of this build for processors of every generation.
TEST(Select, KnownMachines) {
  // The expected sets are right only if the kernels of all instruction sets were compiled.
  if (cpu::kernel_sets().front().name != "amx_bf16") GTEST_SKIP() << "this build has kernels of some instruction sets only";
  struct Row {
    const char* name;
    std::string_view vendor, sets, best;
  };
  for (const Row& row : {Row{"Nehalem", "GenuineIntel", "sse2", "portable"}, Row{"Sandy Bridge, without AVX2", "GenuineIntel", "sse2 f16c", "portable"},
                         Row{"Haswell", "GenuineIntel", "sse2 avx2 fma f16c", "avx2"}, Row{"Zen 3", "AuthenticAMD", "sse2 avx2 fma f16c", "avx2"},
                         Row{"Knights Landing", "GenuineIntel", "sse2 avx2 fma f16c avx512f", "avx2"}, Row{"Skylake-SP", "GenuineIntel", kSkylake, "avx512"},
                         Row{"Cooper Lake", "GenuineIntel", kPairs, "avx512"}, Row{"Zen 4", "AuthenticAMD", kPairs, "avx512_bf16"},
                         Row{"of a vendor that is not known", "", kPairs, "avx512"}, Row{"Sapphire Rapids", "GenuineIntel", kTiles, "amx_bf16"},
                         Row{"a virtual Sapphire Rapids without AMX", "GenuineIntel", kPairs, "avx512"}}) {
    EXPECT_EQ(cpu::select_kernels(cpu::kernel_sets(), known(row.vendor, row.sets), "").name, row.best) << row.name;
  }
  EXPECT_EQ(cpu::select_kernels(cpu::kernel_sets(), known("GenuineIntel", kTiles), "", cpu::Tiles::refused).name, "avx512");
}

TEST(Select, SaysWhyASetIsPassedOver) {
  const cpu::KernelSet everywhere{"everywhere", "avx2"}, amd{"amd", "avx2", 0, "AuthenticAMD"}, never{"never", "avx2", 0, "none"};
  EXPECT_EQ(cpu::why_not_preferred(everywhere, known("GenuineIntel", "avx2")), "");
  EXPECT_EQ(cpu::why_not_preferred(everywhere, known("GenuineIntel", "sse2")), "the processor lacks avx2");
  EXPECT_EQ(cpu::why_not_preferred(amd, known("AuthenticAMD", "avx2")), "");
  EXPECT_THAT(cpu::why_not_preferred(amd, known("GenuineIntel", "avx2")), HasSubstr("AuthenticAMD"));
  EXPECT_EQ(cpu::why_not_preferred(never, known("AuthenticAMD", "avx2")), "it is for tests");
  // If the caller names a set, it is chosen on processors of other vendors too.
  EXPECT_EQ(cpu::select_kernels(std::array{never, amd, everywhere}, known("GenuineIntel", "avx2"), "amd").name, "amd");
}

// KernelInstructionSet::why_not_used must be empty for the instruction set in use, and a reason for all other sets.
TEST(Select, SaysWhyEachOtherSetIsNotInUse) {
  const auto expect = [](std::string_view used) {
    for (const KernelInstructionSet& set : kernel_instruction_sets()) EXPECT_EQ(set.why_not_used.empty(), set.name == used) << set.name << ": " << set.why_not_used;
  };
  const std::string_view before = kernel_instruction_set(), last = kernel_instruction_sets().back().name;
  expect(before);
  set_kernel_instruction_set(last);
  expect(last);
  for (const KernelInstructionSet& set : kernel_instruction_sets()) {
    const bool by_itself = std::ranges::any_of(cpu::kernel_sets(), [&](const cpu::KernelSet& one) { return one.name == before && cpu::why_not_preferred(one, cpu::this_cpu()).empty(); });
    if (set.name == before && before != last && by_itself) {
      EXPECT_EQ(set.why_not_used, std::string(last) + " was asked for");
    }
  }
  set_kernel_instruction_set("");
}
#endif

TEST(Select, EveryInstructionSetThatAKernelSetNeedsIsChecked) {
  const Cpu here = detect_cpu();
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    for (const InstructionSet& row : here.instruction_sets) {  // describe a machine with all instruction sets but one
      Cpu other = here;
      for (InstructionSet& changed : other.instruction_sets) changed.available = changed.name != row.name;
      const bool needed = (" " + std::string(set.needs) + " ").find(" " + std::string(row.name) + " ") != std::string::npos;
      EXPECT_EQ(cpu::missing_for(set, other), needed ? row.name : "") << set.name;
    }
  }
  EXPECT_EQ(cpu::kernel_sets().back().needs, "");
}

TEST(Select, ASetThatTheCallerChoosesIsUsedUntilItIsReset) {
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
