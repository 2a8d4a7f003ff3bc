// Tests how much memory attention allocates besides its inputs and outputs: it must be constant or linear in the length, never quadratic. The test counts calls of
// operator new in all threads. Peaks are measured on a new thread, which keeps no memory from earlier calls; the memory that threads keep has its own tests.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "cpu/block_sizes.h"
#include "polyhead/device.h"
#include "polyhead/executor.h"
#include "polyhead/maps.h"
#include "polyhead/sdpa_derivatives.h"
#include "support/last_piece_first.h"
#include "support/machines.h"
#include "support/peak_memory.h"
#include "support/random.h"
#include "support/thread_count.h"

namespace polyhead::test {
namespace {

struct Attention {
  explicit Attention(std::int64_t length, std::int64_t heads = 1) : Attention(length, length, heads) {}
  Attention(std::int64_t queries, std::int64_t keys, std::int64_t heads) {
    Random random(1);
    const Shape of_q{1, heads, queries, 32}, of_k{1, heads, keys, 32};
    q = random.tensor(DType::f32, of_q), k = random.tensor(DType::f32, of_k), v = random.tensor(DType::f32, of_k);
    d_out = random.tensor(DType::f32, of_q);
    out = Tensor(DType::f32, of_q), lse = Tensor(DType::f32, {1, heads, queries});
    d_q = Tensor(DType::f32, of_q), d_k = Tensor(DType::f32, of_k), d_v = Tensor(DType::f32, of_k);
  }
  SdpaForward forward() { return {.q = q, .k = k, .v = v, .out = out, .lse = lse}; }
  // Returns the arguments of a forward pass over the first `queries` queries and `keys` keys.
  SdpaForward forward(std::int64_t queries, std::int64_t keys) {
    const auto cut = [](Tensor& x, std::int64_t last) { return x.view().slice(2, 0, last); };
    return {.q = cut(q, queries), .k = cut(k, keys), .v = cut(v, keys), .out = cut(out, queries), .lse = cut(lse, queries)};
  }
  SdpaBackward backward() { return {.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v}; }
  Tensor q, k, v, d_out, out, lse, d_q, d_k, d_v;
};

class Memory : public testing::Test {
  test::ThreadCount threads_{1};
};

const SdpaOptions kRules[] = {{},
                              {.mask = {.causal = Causal::top_left()}},
                              {.dropout = {.p = 0.1, .seed = 3}},
                              {.mask = {.window = {.left = 40, .right = 3}}},
                              {.softcap = 20}};

// Returns a bound of the memory that a forward pass with heads of width 32 needs on one thread: for a query block, a block of 512 keys and values, scores,
// masks and lists.
std::int64_t forward_bound() { return cpu::block_sizes().query_bytes + 512 * (32 + 32) * 4 + (64 << 10); }

// Calls f with one thread for each size of the second-level cache that gives different block sizes. Each further thread would need the same memory again.
template <class F>
void for_each_cache(const F& f) {
  for_each_machine([&](const DescribedMachine&) {
    const ThreadCount one(1);
    f();
  });
}

// A forward pass of one block of rows needs the same memory for any number of keys.
TEST_F(Memory, ForwardIsConstant) {
  Attention most(1536, 65'536, 1);
  sdpa_forward(most.forward(12, 12));  // the first call of a process allocates memory for facts about the machine; do not count it
  for_each_cache([&] {
    const std::int64_t rows = cpu::block_sizes().query_rows(32, 4);
    const auto of = [&](std::int64_t keys, const SdpaOptions& rules) { return peak_of([&] { sdpa_forward(most.forward(rows, keys), rules); }); };
    for (const SdpaOptions& rules : kRules) {
      const std::int64_t of_1024 = of(1024, rules);
      EXPECT_LT(of_1024, forward_bound());
      EXPECT_EQ(of(4096, rules), of_1024);
      EXPECT_EQ(of(8192, rules), of_1024);
    }
    EXPECT_EQ(of(65'536, {}), of(1024, {}));
  });
}

// The schedule of a forward pass has a list of the blocks of rows, which grows with the number of rows. A std::vector may reserve twice the entries that it holds.
TEST_F(Memory, ForwardOfMoreRowsIsConstant) {
  Attention most(65'536);
  const SdpaOptions window{.mask = {.window = {.left = 40, .right = 3}}};
  for_each_cache([&] {
    const std::int64_t rows = cpu::block_sizes().query_rows(32, 4);
    const auto of = [&](std::int64_t blocks) { return peak_of([&] { sdpa_forward(most.forward(blocks * rows, blocks * rows), window); }); };
    const std::int64_t few = of(5), many = 65'536 / rows;
    EXPECT_LT(few, forward_bound());
    EXPECT_LE(of(many), few + 2 * 24 * many);
  });
}

// Block lists need a byte for each block and a byte for each 64 keys of a block, but no memory for single pairs. In this test each of 64 blocks of queries
// lists one of 64 blocks of keys. A boolean mask of all pairs would need 5,000 times as many bytes; the test allows a hundredth of the size of such a mask.
TEST_F(Memory, BlockListsTakeNoBytesForPairs) {
  constexpr std::int64_t kLength = 8192, kBlocks = kLength / 128;
  Attention most(kLength);
  Tensor lists(DType::i32, {kBlocks, 1});
  for (std::int64_t i = 0; i < kBlocks; ++i) lists.data<std::int32_t>()[i] = static_cast<std::int32_t>(i);
  const SdpaOptions plain, listed{.mask = {.blocks = {.lists = lists}}};
  sdpa_forward(most.forward(), plain);
  const auto forward = [&](const SdpaOptions& options) { return peak_of([&] { sdpa_forward(most.forward(), options); }); };
  const auto backward = [&](const SdpaOptions& options) { return peak_of([&] { sdpa_backward(most.backward(), options); }); };
  EXPECT_LT(forward(listed), forward(plain) + kLength * kLength / 100);
  EXPECT_LT(backward(listed), backward(plain) + kLength * kLength / 100);
}

// A forward pass that writes attention weights allocates memory for the packed keys of a head and for a copy of values that cannot be read in place. If the
// dtype is not the compute type, it also allocates memory for a few rows of attention weights.
TEST_F(Memory, ForwardWithAttentionWeightsIsLinear) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto of = [&](std::int64_t keys) {
      const Tensor q(dtype, {1, 8, 24, 32}), k(dtype, {1, 8, keys, 32});
      Tensor out(dtype, q.shape()), weights(dtype, {1, 8, 24, keys});
      return static_cast<double>(peak_of([&] { sdpa_forward({.q = q, .k = k, .v = k, .out = out, .attention_weights = weights}, {}); }));
    };
    const double of_16384 = of(16384);
    EXPECT_LT(of_16384, (2 * 32 * 16384 + 12 * 16384) * 4 + (512 << 10)) << info(dtype).name;
    EXPECT_LT(of(32768), 2.05 * of_16384 + (64 << 10)) << info(dtype).name;
  }
}

// With one thread, each key block is joined to the result as soon as it is computed, so the memory does not grow with the number of keys.
TEST_F(Memory, ForwardOfFewQueriesDoesNotGrowWithTheKeys) {
  for (const SdpaOptions& rules : kRules) {
    const auto of = [&](std::int64_t keys) {
      Attention attention(4, keys, 1);
      return peak_of([&] { sdpa_forward(attention.forward(), rules); });
    };
    EXPECT_LT(of(50'000), 256 << 10);
    EXPECT_EQ(of(100'000), of(50'000));
  }
}

TEST_F(Memory, BackwardIsLinear) {
  for (const SdpaOptions& rules : kRules) {
    const auto of = [&](std::int64_t length) {
      Attention attention(length / 4, length, 1);
      sdpa_forward(attention.forward(), rules);
      return static_cast<double>(peak_of([&] { sdpa_backward(attention.backward(), rules); }));
    };
    // The backward pass allocates sums of d_q for all rows. With more than 4096 keys it also allocates sums of d_q over one split of keys: 32 float32 for each
    // row.
    const double of_5120 = of(5120), of_10240 = of(10240);
    EXPECT_LT(of_10240, 2.05 * of_5120);
    EXPECT_LT(of_10240, 2 * 2560 * 32 * 4 + (2 << 20));
  }
}

TEST_F(Memory, SecondDerivativesAreLinear) {
  for (const SdpaOptions& rules : kRules) {
    const auto of = [&](std::int64_t length) {
      Attention a(length / 4, length, 1);
      sdpa_forward(a.forward(), rules);
      const SdpaTangents tangents{.q = a.q, .k = a.k, .v = a.v};
      Tensor out_tangent(DType::f32, a.out.shape());
      const std::int64_t jvp = peak_of([&] { sdpa_jvp({.q = a.q, .k = a.k, .v = a.v, .out = a.out, .lse = a.lse, .tangents = tangents, .out_tangent = out_tangent}, rules); });
      EXPECT_LT(jvp, 1 << 20) << length;
      return static_cast<double>(peak_of([&] {
        sdpa_backward_backward({.q = a.q, .k = a.k, .v = a.v, .out = a.out, .lse = a.lse, .d_out = a.d_out, .d_gradients = tangents, .d_q = a.d_q, .d_k = a.d_k, .d_v = a.d_v,
                                .d_d_out = out_tangent},
                               rules);
      }));
    };
    // sdpa_backward_backward() allocates the same sums of d_q as the backward pass, and six more float32 for each row.
    const double of_5120 = of(5120), of_10240 = of(10240);
    EXPECT_LT(of_10240, 2.05 * of_5120);
    EXPECT_LT(of_10240, 2560 * (2 * 32 + 6) * 4 + (3 << 20));
  }
}

// If each pair has an element of d_bias, the elements are written in place as bfloat16, so no float32 sums are allocated.
TEST_F(Memory, GradientOfABiasWithOneElementPerPairNeedsNoMemory) {
  Random random(1);
  const auto operand = [&] { return random.tensor(DType::bf16, {1, 1, 1024, 32}); };
  const Tensor q = operand(), k = operand(), v = operand(), d_out = operand(), bias = random.tensor(DType::bf16, {1024, 1024});
  Tensor out = operand(), d_v = operand(), lse(DType::f32, {1, 1, 1024}), d_bias(DType::bf16, bias.shape());
  const SdpaOptions options{.bias = bias};
  sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, options);
  const auto taken = [&](TensorView gradient) {
    return peak_of([&] { sdpa_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_v = d_v, .d_bias = gradient}, options); });
  };
  EXPECT_EQ(taken(d_bias), taken({}));
}

TEST_F(Memory, ManyHeadsNeedNoMoreScratchThanOneHead) {
  Attention one(512, 1), many(512, 16);
  const auto both = [](Attention& attention) {
    return peak_of([&] {
      sdpa_forward(attention.forward());
      sdpa_backward(attention.backward());
    });
  };
  EXPECT_LT(both(many), both(one) + (64 << 10));
}

TEST_F(Memory, ExplainNamesTheScratch) {
  // The first problem is computed in blocks of rows, the second in key splits, and the third has few queries of many heads.
  std::array problems{Attention(2048), Attention(40, 20'000, 1), Attention(4, 30'000, 9)};
  for_each_machine([&](const DescribedMachine& machine) {
    LastPieceFirst threads(machine.processors);
    const SdpaOptions options{.executor = &threads};
    for (Attention& attention : problems) {
      const std::string text = explain(attention.forward(), options);
      const std::size_t at = text.find("scratch: "), more = text.find("bytes per thread and ");
      ASSERT_NE(at, std::string::npos) << text;
      double promised = std::stod(text.substr(at + 9));
      if (more != std::string::npos) promised += std::stod(text.substr(more + 21));
      const std::int64_t taken = peak_of([&] { sdpa_forward(attention.forward(), options); });
      EXPECT_NEAR(static_cast<double>(taken), promised, 8192 + 256 * machine.processors) << text;  // the tolerance covers lists of up to 16 pieces for each thread
    }
  });
}

TEST_F(Memory, AThreadThatEndsLeavesNothing) {
  Attention attention(64, 8);
  const auto call = [&] { sdpa_forward(attention.forward()), sdpa_backward(attention.backward()); };
  call();
  const std::int64_t before = in_use;
  for (int i = 0; i < 4; ++i) std::thread(call).join();
  EXPECT_EQ(in_use, before);
  call();  // this call reuses the memory that threads kept
  EXPECT_EQ(in_use, before);
}

TEST_F(Memory, ThreadsOfThePoolKeepThreeSmallBlocksEach) {
  constexpr int kThreads = 4;
  set_num_threads(kThreads);
  const std::int64_t before = in_use;
  for (const std::int64_t length : {16, 50, 64, 100, 200, 300, 400, 512, 700, 1024}) {
    Attention attention(length, 16);
    for (int i = 0; i < 3; ++i) {
      std::thread([&] { sdpa_forward(attention.forward()), sdpa_backward(attention.backward()); }).join();
    }
  }
  EXPECT_LE(in_use - before, (kThreads - 1) * 3 * (256 << 10) + (16 << 10));  // 3 blocks of at most 256 KiB for each thread, and 16 KiB for the list of threads
}

TEST_F(Memory, MapsOfChosenRowsHoldThoseRowsOnly) {
  Attention attention(4096);
  sdpa_forward(attention.forward());
  const std::int64_t rows[] = {5, 4000};
  Tensor maps(DType::f32, {1, 1, 2, 4096});
  const std::int64_t taken = peak_of([&] { attention_map_rows({.q = attention.q, .k = attention.k}, rows, maps); });
  EXPECT_LT(taken, 4 << 20);  // the whole attention map would need 64 MiB
}

}  // namespace
}  // namespace polyhead::test
