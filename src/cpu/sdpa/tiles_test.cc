// Tests when the library requests AMX tiles from Linux, and what it does if Linux refuses. The tests are skipped on processors without AMX, where Linux is not
// asked. A process cannot give tiles back, so each test needs a new process and is skipped in a process that already has tiles.
#include <gmock/gmock.h>

#if defined(__x86_64__) && defined(__linux__)
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <list>
#include <vector>

#include "polyhead/maps.h"
#include "support/kernel_case.h"

namespace polyhead::test {
namespace {

using testing::HasSubstr;

class AmxTiles : public testing::Test {
 protected:
  void SetUp() override {
    constexpr long kGetPermission = 0x1022;
    constexpr unsigned long kTileData = 1ul << 18;
    unsigned long asked = 0;
    if (kernel_instruction_set() != "amx_bf16") GTEST_SKIP() << "needs a processor with AMX";
    if (syscall(SYS_arch_prctl, kGetPermission, &asked) != 0 || (asked & kTileData) != 0) GTEST_SKIP() << "this process has requested tiles before";
  }

  void TearDown() override {
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }

  // Returns the result of sigaltstack() for 8 KiB, which is too small for tiles: 0 or errno.
  int use_small_signal_stack() {
    stack_.resize(8192);
    stack_t small{};
    small.ss_sp = stack_.data(), small.ss_size = stack_.size();
    return sigaltstack(&small, nullptr) == 0 ? 0 : errno;
  }

  AttentionOutputs attention(DType dtype) {
    Random random(1);
    AttentionCase& c = cases_.emplace_back(case_of(random, dtype, {.queries = 30, .keys = 90, .qk_width = 32, .v_width = 32}, &find_backend("cpu")));
    AttentionOutputs out = c.make_outputs();
    c.run(out);
    return out;
  }

 private:
  std::vector<char> stack_;
  std::list<AttentionCase> cases_;  // the cases own the outputs of the calls
};

TEST_F(AmxTiles, AreNotRequestedWithoutBfloat16) {
  attention(DType::f32);
  Random random(1);
  const AttentionCase c = case_of(random, DType::bf16, {.queries = 30, .keys = 90, .qk_width = 32, .v_width = 32}, &find_backend("cpu"));
  Tensor sums(DType::f32, {c.q.shape()[0], 90});
  attention_key_sums({.q = c.q, .k = c.k}, sums, c.options);  // maps are computed with exact products, so they must not request tiles
  EXPECT_EQ(use_small_signal_stack(), 0);
}

TEST_F(AmxTiles, AreRequestedByTheFirstProductOfBfloat16) {
  attention(DType::bf16);
  EXPECT_EQ(kernel_instruction_set(), "amx_bf16");
  EXPECT_EQ(use_small_signal_stack(), ENOMEM);
}

TEST_F(AmxTiles, IfTheyAreRefusedTheNextSetIsUsedAndTheReasonIsReported) {
  ASSERT_EQ(use_small_signal_stack(), 0);
  const AttentionOutputs exact = attention(DType::f32), refused = attention(DType::bf16);
  EXPECT_EQ(kernel_instruction_set(), "avx512");
  EXPECT_THAT(kernel_instruction_sets().front().why_not_used, HasSubstr("sigaltstack"));
  EXPECT_THAT(error_message([] { set_kernel_instruction_set("amx_bf16"); }), HasSubstr("sigaltstack"));
  set_kernel_instruction_set("avx512");
  expect_same_bits(refused, attention(DType::bf16));
  expect_same_bits(exact, attention(DType::f32));
}

}  // namespace
}  // namespace polyhead::test
#endif
