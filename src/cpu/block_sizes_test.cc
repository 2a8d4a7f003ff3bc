// Tests the block sizes for machines with other caches, and that results have the same bits with all of these sizes.
#include "cpu/block_sizes.h"

#include <gmock/gmock.h>

#include "core/text.h"
#include "cpu/gemm/gemm.h"
#include "polyhead/sdpa.h"
#include "support/compare.h"
#include "support/machines.h"
#include "support/random.h"

namespace polyhead::test {
namespace {

using cpu::BlockSizes, cpu::block_sizes, cpu::second_cache;
using testing::AllOf, testing::HasSubstr;

Cpu machine(std::int64_t l1, int l1_shared_by, std::int64_t l2, int l2_shared_by) {
  Cpu cpu;
  cpu.caches = {{1, "data", l1, l1_shared_by}, {1, "instruction", 32 << 10, l1_shared_by}, {2, "unified", l2, l2_shared_by}, {3, "unified", 32 << 20, 16}};
  return cpu;
}

TEST(BlockSizes, ACoreHasItsShareOfTheSecondCache) {
  EXPECT_EQ(second_cache(machine(32 << 10, 1, 1 << 20, 1)), 1 << 20);
  EXPECT_EQ(second_cache(machine(48 << 10, 2, 1280 << 10, 2)), 1280 << 10) << "two threads of one core share both caches";
  EXPECT_EQ(second_cache(machine(32 << 10, 1, 2 << 20, 4)), 512 << 10) << "a cluster of four cores";
  EXPECT_EQ(second_cache(machine(64 << 10, 0, 1 << 20, 0)), 1 << 20) << "it is not known how many threads share the caches";
  EXPECT_EQ(second_cache(Cpu{}), 1 << 20) << "nothing is known about the caches";
  EXPECT_EQ(second_cache(machine(32 << 10, 1, 0, 1)), 1 << 20) << "a size that could not be read";
}

TEST(BlockSizes, KnownMachines) {
  struct Row {
    const char* name;
    Cpu cpu;
    std::int64_t rows_64, rows_128, rows_256, row_bytes, panel_bytes, prefetch_bytes;
  };
  const Row rows[] = {
      {"Skylake-SP, Zen 4", machine(32 << 10, 2, 1 << 20, 2), 768, 384, 192, 400 << 10, 256 << 10, 200 << 10},
      {"Ice Lake-SP", machine(48 << 10, 2, 1280 << 10, 2), 768, 384, 192, 400 << 10, 256 << 10, 200 << 10},
      {"Sapphire Rapids", machine(48 << 10, 2, 2 << 20, 2), 1536, 768, 384, 800 << 10, 512 << 10, 400 << 10},
      {"Zen 3", machine(32 << 10, 2, 512 << 10, 2), 384, 192, 96, 200 << 10, 128 << 10, 100 << 10},
      {"Neoverse N1", machine(64 << 10, 1, 1 << 20, 1), 768, 384, 192, 400 << 10, 256 << 10, 200 << 10},
      {"Skylake client", machine(32 << 10, 2, 256 << 10, 2), 192, 96, 48, 100 << 10, 64 << 10, 50 << 10},
      {"not known", Cpu{}, 768, 384, 192, 400 << 10, 256 << 10, 200 << 10},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const BlockSizes sizes = block_sizes(second_cache(row.cpu));
    EXPECT_EQ(sizes.query_rows(64, 4), row.rows_64);
    EXPECT_EQ(sizes.query_rows(65, 4), row.rows_128);
    EXPECT_EQ(sizes.query_rows(64, 8), row.rows_128);
    EXPECT_EQ(sizes.query_rows(512, 4), row.rows_256);
    EXPECT_EQ(sizes.row_bytes, row.row_bytes);
    EXPECT_EQ(sizes.panel_bytes, row.panel_bytes);
    EXPECT_EQ(sizes.prefetch_bytes, row.prefetch_bytes);
  }
}

TEST(BlockSizes, FitTheCache) {
  for (std::int64_t bytes = 1; bytes < 64 << 20; bytes = bytes * 5 / 4 + 1) {
    const BlockSizes sizes = block_sizes(bytes);
    EXPECT_LE(sizes.query_bytes + (bytes >= 512 << 10 ? 256 << 10 : 0), std::max<std::int64_t>(bytes, 256 << 10)) << bytes << ": the query block leaves 256 KiB of the cache to a key block";
    EXPECT_LE(sizes.row_bytes + sizes.panel_bytes, std::max<std::int64_t>(bytes, 256 << 10)) << bytes;
    EXPECT_EQ(sizes.query_rows(64, 4) % 12, 0) << bytes << ": whole strips";
  }
}

TEST(BlockSizes, OfEachMachineFitItsCache) {
  for_each_machine([](const DescribedMachine& machine) {
    const BlockSizes sizes = block_sizes();
    const std::int64_t second = machine.second_bytes > 0 ? machine.second_bytes : 1 << 20;
    EXPECT_EQ(sizes.query_bytes, block_sizes(second).query_bytes);
    EXPECT_LE(sizes.query_bytes, second);
    EXPECT_LE(sizes.row_bytes + sizes.panel_bytes, second);
    for (const std::int64_t width : {1, 32, 64, 65, 128, 200, 4096}) {
      for (const std::int64_t element_bytes : {4, 8}) {
        const std::int64_t rows = sizes.query_rows(width, element_bytes);
        EXPECT_GE(rows, 48) << width;
        EXPECT_EQ(rows % 12, 0) << width << ": whole strips";
      }
    }
  });
}

// Computes f with one thread on this machine, then with the block sizes and the thread count of each other machine in the list, and compares the results.
template <class F>
void expect_same_bits_on_each_machine(const F& f) {
  const std::vector<Tensor> expected = [&] {
    const ThreadCount one(1);
    return f();
  }();
  for_each_machine([&](const DescribedMachine&) {
    const std::vector<Tensor> results = f();
    for (std::size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(same_bits(results[i], expected[i])) << "result " << i;
  });
}

// 96 queries are one block of rows if the second-level cache has 1 MiB, and two blocks if it has 256 KiB.
TEST(BlockSizes, AttentionHasTheSameBitsWithAnyCache) {
  for (const auto& [queries, keys] : std::initializer_list<std::pair<std::int64_t, std::int64_t>>{{96, 5000}, {900, 1000}}) {
    SCOPED_TRACE(queries);
    Random random(8);
    const std::int64_t width = 200;
    const Tensor q = random.tensor(DType::f32, {1, queries, width}), k = random.tensor(DType::f32, {1, keys, width}), v = random.tensor(DType::f32, {1, keys, width}),
                 d_out = random.tensor(DType::f32, {1, queries, width});
    expect_same_bits_on_each_machine([&] {
      Tensor out(DType::f32, q.shape()), lse(DType::f32, {1, q.extent(1)}), d_q(DType::f32, q.shape()), d_k(DType::f32, k.shape()), d_v(DType::f32, v.shape());
      const SdpaOptions options{.backend = &find_backend("cpu")};
      sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, options);
      sdpa_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v}, options);
      return std::vector{out, lse, d_q, d_k, d_v};
    });
  }
}

TEST(BlockSizes, AProductHasTheSameBitsWithAnyCache) {
  Random random(7);
  const Tensor a = random.tensor(DType::f32, {500, 700}), b = random.tensor(DType::f32, {700, 300});
  expect_same_bits_on_each_machine([&] {
    Tensor c(DType::f32, {500, 300});
    cpu::gemm({.a = a, .b = b, .c = c});
    return std::vector{c};
  });
}

std::string explained() {
  const Tensor q(DType::f32, {1, 2, 3000, 64});
  Tensor out(DType::f32, q.shape());
  return explain({.q = q, .k = q, .v = q, .out = out});
}

TEST(Explain, ReportsTheFactsAboutTheMachine) {
  const auto of = [](const DescribedMachine& machine) {
    const AsIfOn guard(machine);
    return explained();
  };
  EXPECT_THAT(of({48 << 10, 2 << 20, 480 << 20, 2}), HasSubstr("\nprocessors: 2 of 2 online\ncaches: L1d 48 KiB, L2 2 MiB, L3 480 MiB\ninstruction sets: "));
  EXPECT_THAT(of({64 << 10, 1280 << 10, 0, 64}), HasSubstr("\nprocessors: 64 of 64 online\ncaches: L1d 64 KiB, L2 1.25 MiB, L3 unknown\n"));
  EXPECT_THAT(of({0, 0, 0, 1}), AllOf(HasSubstr("\ncaches: L1d unknown, L2 unknown, L3 unknown\n"), HasSubstr("threads: 1\n")));
  EXPECT_THAT(of({}), HasSubstr(cat("; kernels for ", kernel_instruction_set(), "\n")));
  // explain() shows the block sizes that follow from the described cache.
  EXPECT_THAT(of({0, 256 << 10, 0, 1}), HasSubstr("blocks of 192 queries, 32 of them"));
  EXPECT_THAT(of({0, 2 << 20, 0, 1}), HasSubstr("blocks of 1500 queries, 4 of them"));
}

}  // namespace
}  // namespace polyhead::test
