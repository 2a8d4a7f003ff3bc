// Tests that the bits of a result do not depend on the number of threads, on strides, or on which other sequences and heads the call has. Also tests that
// outputs which overlap inputs are refused, and that interleaved views are accepted.
#include <gmock/gmock.h>

#include <thread>

#include "polyhead/maps.h"
#include "support/case_part.h"
#include "support/each_backend.h"

namespace polyhead::test {
namespace {

// An executor that runs tasks from the last to the first, on several threads.
class Backwards : public Executor {
 public:
  explicit Backwards(int threads) : threads_(threads) {}
  int num_threads() const override { return threads_; }
  void run(std::int64_t count, const std::function<void(std::int64_t)>& task) override {
    std::vector<std::thread> pool;
    for (int thread = 0; thread < threads_; ++thread) {
      pool.emplace_back([&, thread] {
        for (std::int64_t i = count - 1 - thread; i >= 0; i -= threads_) task(i);
      });
    }
    for (std::thread& thread : pool) thread.join();
  }

 private:
  int threads_;
};

constexpr std::array kFloating{DType::f64, DType::f32, DType::bf16, DType::f16};

using SameBits = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, SameBits, testing::ValuesIn(backends()), name_of_backend);

TEST_P(SameBits, ForAnyNumberOfThreadsAndOrderOfTasks) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_case(random, kFloating[seed % 4]);
    c.options.backend = GetParam();
    Backwards one(1), three(3);
    c.options.executor = &one;
    const AttentionOutputs expected = c.make_outputs();
    c.run(expected);
    for (Executor* executor : {static_cast<Executor*>(&three), static_cast<Executor*>(nullptr)}) {
      c.options.executor = executor;
      const AttentionOutputs o = c.make_outputs();
      c.run(o);
      expect_same_bits(o, expected);
    }
  }
}

TEST_P(SameBits, ForAnyStrides) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_case(random, kFloating[seed % 4]);
    c.options.backend = GetParam();
    const AttentionOutputs expected = c.make_outputs();
    c.run(expected);
    for (ConstTensorView* view : {&c.q, &c.k, &c.v, &c.d_out}) *view = c.keep(random.strided_copy(*view));
    if (c.options.bias && !c.table) c.options.bias = c.keep(random.strided_copy(c.options.bias));
    const AttentionOutputs o = c.make_outputs(&random);
    c.run(o);
    expect_same_bits(o, expected);
  }
}

TEST_P(SameBits, WhateverTheOtherSequencesAre) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const AttentionSizes sizes{
        .lead = {3}, .kv_heads = 2, .group = 2, .queries = random.integer(1, 9), .keys = random.integer(1, 9), .qk_width = 3, .v_width = 4};
    AttentionCase c = case_of(random, kFloating[seed % 4], sizes, GetParam());
    draw_mask(random, c);
    c.options.bias = c.keep(random.tensor(c.dtype, {4, c.sizes.queries, c.sizes.keys}));
    const AttentionOutputs all = c.make_outputs();
    c.run(all);
    for (std::int64_t b = 0; b < 3; ++b) {
      AttentionCase one = alone(c, sequence_of(c, b));
      expect_same_bits_alone(c, all, sequence_of(c, b), one);
    }
  }
}

TEST_P(SameBits, RunToRun) {
  Random random(9);
  AttentionCase c = draw_case(random, DType::f32);
  c.options.backend = GetParam();
  const AttentionOutputs first = c.make_outputs(), second = c.make_outputs();
  c.run(first);
  c.run(second);
  expect_same_bits(second, first);
}

struct Packed {
  static constexpr std::int64_t kLength = 5, kHeads = 2, kWidth = 3;
  Tensor memory;
  explicit Packed(std::uint64_t seed) : memory(Random(seed).tensor(DType::f32, {2, kLength, 3, kHeads, kWidth})) {}
  TensorView part(std::int64_t i) { return memory.view().select(2, i).transpose(1, 2); }  // [B,N,T,H]
};

TEST(Overlap, PackedQkvIsReadInPlaceAndItsGradientWrittenInPlace) {
  Packed x(1), d_x(2);
  const Tensor q = Tensor::copy_of(x.part(0)), k = Tensor::copy_of(x.part(1)), v = Tensor::copy_of(x.part(2));
  const Tensor d_out = Random(3).tensor(DType::f32, q.shape());
  Tensor out(DType::f32, q.shape()), lse(DType::f32, {2, 2, 5}), d_q(DType::f32, q.shape()), d_k = d_q, d_v = d_q, packed_out = out,
                                                                                             packed_lse = lse;
  sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse});
  sdpa_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v});
  sdpa_forward({.q = x.part(0), .k = x.part(1), .v = x.part(2), .out = packed_out, .lse = packed_lse});
  sdpa_backward({.q = x.part(0),
                 .k = x.part(1),
                 .v = x.part(2),
                 .out = packed_out,
                 .lse = packed_lse,
                 .d_out = d_out,
                 .d_q = d_x.part(0),
                 .d_k = d_x.part(1),
                 .d_v = d_x.part(2)});
  EXPECT_TRUE(same_bits(packed_out, out));
  EXPECT_TRUE(same_bits(d_x.part(0), d_q));
  EXPECT_TRUE(same_bits(d_x.part(1), d_k));
  EXPECT_TRUE(same_bits(d_x.part(2), d_v));
}

TEST(Overlap, OutputsOnInputsOrOnEachOtherAreRefused) {
  Packed x(1);
  Tensor out(DType::f32, {2, 2, 5, 3}), lse(DType::f32, {2, 2, 5});
  const auto forward = [&](TensorView to, TensorView to_lse, TensorView weights = {}) {
    return error_message([&] { sdpa_forward({.q = x.part(0), .k = x.part(1), .v = x.part(2), .out = to, .lse = to_lse, .attention_weights = weights}); });
  };
  EXPECT_THAT(forward(x.part(0), lse), testing::HasSubstr("out overlaps q"));
  EXPECT_THAT(forward(x.part(2), lse), testing::HasSubstr("out overlaps v"));
  EXPECT_THAT(forward(out, x.memory.view().reshape({180}).slice(0, 0, 20).reshape({2, 2, 5})), testing::HasSubstr("lse overlaps"));
  EXPECT_THAT(forward(out, out.view().select(-1, 0)), testing::HasSubstr("lse overlaps out"));
  EXPECT_THAT(forward(out, lse, x.memory.view().reshape({180}).slice(0, 0, 100).reshape({2, 2, 5, 5})), testing::HasSubstr("attention_weights overlaps"));
  EXPECT_THAT(forward(out.view().slice(-1, 0, 1).expand({2, 2, 5, 3}), lse), testing::HasSubstr("elements of out share memory"));

  sdpa_forward({.q = x.part(0), .k = x.part(1), .v = x.part(2), .out = out, .lse = lse});
  Tensor d_q(DType::f32, out.shape()), bias(DType::f32, {5, 5});
  const auto backward = [&](TensorView to_q, TensorView to_k, TensorView to_bias) {
    return error_message([&] {
      sdpa_backward({.q = x.part(0),
                     .k = x.part(1),
                     .v = x.part(2),
                     .out = out,
                     .lse = lse,
                     .d_out = out,
                     .d_q = to_q,
                     .d_k = to_k,
                     .d_bias = to_bias},
                    {.bias = bias});
    });
  };
  EXPECT_THAT(backward(out, {}, {}), testing::HasSubstr("d_q overlaps out"));
  EXPECT_THAT(backward(d_q, d_q, {}), testing::HasSubstr("d_k overlaps d_q"));
  EXPECT_THAT(backward(d_q, {}, bias), testing::HasSubstr("d_bias overlaps bias"));
  EXPECT_EQ(backward(d_q, {}, during_call(Tensor(DType::f32, {5, 5}))), "");

  Tensor map(DType::f32, {2, 2, 5, 5});
  EXPECT_THAT(error_message([&] { attention_map({.q = map, .k = map}, map); }), testing::HasSubstr("out overlaps q"));
}

TEST(Maps, OutputsMayNotOverlapInputsOrOtherOutputs) {
  const Tensor q = Random(1).tensor(DType::f32, {2, 3, 4}), lse(DType::f32, {2, 3});
  const MapsInput input{.q = q, .k = q};
  Tensor map(DType::f32, {2, 3, 3}), mean(DType::f32, {2});
  EXPECT_THAT(error_message([&] { attention_map(input, map, {.bias = map}); }), testing::HasSubstr("attention_map: out overlaps bias"));
  EXPECT_THAT(error_message([&] { attention_statistics(input, {.entropy = mean, .largest = mean}); }),
              testing::HasSubstr("attention_statistics: largest overlaps entropy"));
  Tensor keys(DType::i64, {2, 3, 1});
  const TensorView halves(static_cast<float*>(keys.view().data()), {2, 3, 1});
  EXPECT_THAT(error_message([&] { attention_top_keys(input, halves, keys); }), testing::HasSubstr("key overlaps probability"));
}

}  // namespace
}  // namespace polyhead::test
