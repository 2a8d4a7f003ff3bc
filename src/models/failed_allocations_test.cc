// Tests that a call which changes state either succeeds or leaves the state unchanged, wherever memory runs out.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "io/failing_new.h"
#include "io/test_files.h"
#include "polyhead/io/parameters.h"
#include "polyhead/nn/encoder_decoder.h"
#include "polyhead/nn/optimizer.h"
#include "polyhead/nn/stack_cache.h"
#include "support/compare.h"
#include "support/random.h"

namespace polyhead {
namespace {

using io::run_out_of_memory;
using test::Random;
using test::same_bits;

// Returns copies of the tensors that visit() lists.
template <class M>
std::vector<Tensor> state_of(const M& module) {
  std::vector<Tensor> tensors;
  module.visit([&](const std::string&, const Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

void expect_same(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].shape(), expected[i].shape()) << i;
    const std::size_t bytes = static_cast<std::size_t>(actual[i].numel()) * info(actual[i].dtype()).size;
    ASSERT_TRUE(bytes == 0 || std::memcmp(actual[i].view().data(), expected[i].view().data(), bytes) == 0) << i;
  }
}

// Returns copies of the cache's lengths, and of its keys and values up to these lengths.
std::vector<Tensor> state_of(const nn::KeyValueCache& cache) {
  std::vector<Tensor> state{Tensor::copy_of(cache.key_lengths()), Tensor::copy_of(cache.previous_lengths())};
  for (std::int64_t b = 0; b < cache.sequences(); ++b) {
    for (const ConstTensorView& view : {cache.keys(), cache.values(), cache.key_scales(), cache.value_scales()})
      if (view) state.push_back(Tensor::copy_of(view.select(0, b).slice(1, 0, cache.length(b))));
  }
  return state;
}

// Calls f repeatedly; memory runs out at the first allocation of the first call, at the second of the second call, and so on. Each call must fail and leave the
// state unchanged, until one succeeds. At least `least` calls must fail.
template <class State, class F>
void expect_whole_or_nothing(const State& state, std::int64_t least, const F& f) {
  const std::vector<Tensor> before = state_of(state);
  EXPECT_GE(run_out_of_memory(f, [&] { expect_same(state_of(state), before); }), least);
}

nn::FeedForward layer(DType dtype, std::uint64_t seed) { return nn::FeedForward({.width = 32, .hidden_width = 520, .dtype = dtype, .seed = seed}); }

TEST(FailedAllocations, AStepOfAdamWIsWholeOrNothing) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const int count : {1, 3}) {
      LimitedThreads threads(count);
      nn::FeedForward model = layer(dtype, 1), other = model;
      const nn::FeedForward gradients = layer(dtype, 2);
      nn::AdamW optimizer(model), reference(model);
      for (int step = 0; step < 2; ++step) {
        const std::vector<Tensor> before = state_of(model);
        expect_whole_or_nothing(optimizer, 5, [&] {
          try {
            optimizer.step(model, gradients, {.executor = &threads});
          } catch (...) {
            io::allocations_left = -1;
            expect_same(state_of(model), before);
            throw;
          }
        });
        reference.step(other, gradients);
        EXPECT_EQ(optimizer.steps(), step + 1);
        expect_same(state_of(optimizer), state_of(reference));
        expect_same(state_of(model), state_of(other));
      }
    }
  }
}

TEST(FailedAllocations, GradientsAreClippedAndAddedWholeOrNot) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    LimitedThreads threads(3);
    nn::FeedForward gradients = layer(dtype, 1);
    expect_whole_or_nothing(gradients, 5, [&] { nn::clip_gradients(gradients, 0.5, &threads); });
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    LimitedThreads threads(3);
    const nn::FeedForward gradients = layer(dtype, 1);
    nn::FeedForward sums = layer(dtype, 2), expected = sums;
    nn::add_gradients(gradients, expected);
    expect_whole_or_nothing(sums, 5, [&] { nn::add_gradients(gradients, sums, &threads); });
    expect_same(state_of(sums), state_of(expected));
  }
}

// Tests caches of each dtype: caches that own their memory, and caches on the caller's memory, in which the elements of a key are not contiguous.
TEST(FailedAllocations, AKeyValueCacheIsChangedWhollyOrNot) {
  constexpr std::int64_t kSequences = 6;
  for (const DType dtype : {DType::f32, DType::bf16, DType::i8}) {
    for (const bool own : {true, false}) {
      Random random(1);
      Tensor keys(dtype, {5, 9, 2, kSequences}), values(dtype, {3, 9, 2, kSequences}), key_scales(DType::f32, {9, kSequences, 2}), value_scales = key_scales;
      const auto by_sequence = [](Tensor& tensor) { return tensor.view().permute(std::array{3, 2, 1, 0}); };
      const auto scales = [&](Tensor& tensor) { return dtype == DType::i8 ? tensor.view().permute(std::array{1, 2, 0}) : TensorView(); };
      nn::KeyValueCache cache = own ? nn::KeyValueCache({.sequences = kSequences, .kv_heads = 2, .capacity = 9, .head_width = 5, .value_head_width = 3, .dtype = dtype})
                                    : nn::KeyValueCache(by_sequence(keys), by_sequence(values), {}, scales(key_scales), scales(value_scales));
      const Tensor k = random.tensor(DType::f32, {kSequences, 2, 4, 5}), v = random.tensor(DType::f32, {kSequences, 2, 4, 3});
      const Tensor counts = Tensor::of<std::int64_t>({kSequences}, {4, 2, 0, 3, 1, 4});
      expect_whole_or_nothing(cache, 1, [&] { cache.append(k, v, counts); });
      std::vector<Tensor> of_sequence;
      for (std::int64_t b = 0; b < kSequences; ++b) of_sequence.push_back(Tensor::copy_of(cache.keys().select(0, b).slice(1, 0, cache.length(b))));
      // Sequences 0, 1 and 3 form a cycle, 4 and 5 change places, and 2 and 3 both become sequence 0.
      const std::array<std::int64_t, kSequences> source{1, 3, 0, 0, 5, 4};
      expect_whole_or_nothing(cache, 3, [&] { cache.reorder(source); });
      for (std::int64_t b = 0; b < kSequences; ++b) {
        const Tensor& expected = of_sequence[static_cast<std::size_t>(source[static_cast<std::size_t>(b)])];
        ASSERT_EQ(cache.length(b), expected.extent(1));
        ASSERT_TRUE(same_bits(cache.keys().select(0, b).slice(1, 0, cache.length(b)), expected)) << b;
      }
      expect_whole_or_nothing(cache, 0, [&] { cache.copy_sequence(0, 5); });
      EXPECT_EQ(cache.length(5), cache.length(0));
      expect_whole_or_nothing(cache, 1, [&] { cache.truncate(0, 1); });
      EXPECT_EQ(cache.length(0), 1);
    }
  }
}

TEST(FailedAllocations, ALayerWithACacheAppendsWhollyOrNot) {
  const nn::MultiHeadAttention attention({.query_width = 8, .heads = 2, .seed = 1});
  const Tensor x = Random(2).tensor(DType::f32, {2, 3, 8});
  Tensor out(DType::f32, {2, 3, 8});
  nn::KeyValueCache cache({.sequences = 2, .kv_heads = 2, .capacity = 6, .head_width = 4});
  for (int call = 0; call < 2; ++call)
    expect_whole_or_nothing(cache, 5, [&] { attention.forward({.query = x}, out, {.mask = {.causal = Causal::top_left()}, .cache = &cache}); });
  EXPECT_EQ(cache.length(0), 6);
}

// Calls f on `cache` while memory runs out. The result of step(cache), which depends on all that a cache holds, must then be that of `other`, an equal cache on
// which f was not called. Finally f succeeds on both caches, and the results of step() must be equal again.
template <class Cache, class F, class Step>
void expect_whole_or_nothing_in_a_stack(Cache& cache, Cache& other, std::int64_t least, const F& f, const Step& step) {
  const std::vector<double> before = test::to_doubles(cache.key_lengths());
  const auto shown = [&](Cache& one) {
    const Tensor lengths = Tensor::copy_of(one.key_lengths());
    Tensor result = step(one);
    one.truncate({lengths.data<std::int64_t>(), static_cast<std::size_t>(lengths.numel())});
    return result;
  };
  const Tensor expected = shown(other);
  EXPECT_GE(run_out_of_memory([&] { f(cache); },
                              [&] {
                                ASSERT_EQ(test::to_doubles(cache.key_lengths()), before);
                                ASSERT_TRUE(same_bits(shown(cache), expected));
                              }),
            least);
  f(other);
  EXPECT_EQ(test::to_doubles(cache.key_lengths()), test::to_doubles(other.key_lengths()));
  EXPECT_TRUE(same_bits(shown(cache), shown(other)));
}

TEST(FailedAllocations, CachesOfStacksAreChangedInEveryLayerOrInNone) {
  Random random(3);
  const nn::Encoder encoder({.width = 8, .heads = 2, .norm_position = nn::NormPosition::pre, .seed = 1}, 3);
  const nn::EncoderDecoder translator({.source_count = 7, .layers = 1, .decoder_layers = 2, .layer = {.width = 8, .heads = 2, .seed = 1}});
  const Tensor x = random.tensor(DType::f32, {4, 2, 8}), memory = random.tensor(DType::f32, {2, 3, 8}), ids = Tensor::of<std::int64_t>({4, 2}, {1, 2, 3, 4, 5, 6, 0, 1});
  const auto one = [](const Tensor& tensor) { return tensor.view().slice(1, 0, 1); };
  const std::array<std::int64_t, 4> source{1, 0, 3, 3};

  nn::EncoderCache a(encoder, {.sequences = 4, .capacity = 6}), b(encoder, {.sequences = 4, .capacity = 6});
  const auto encode = [&](nn::EncoderCache& cache) { Tensor y(DType::f32, {4, 2, 8}); encoder.forward(x, y, cache, {.mask = {.causal = Causal::top_left()}}); };
  const auto encode_one = [&](nn::EncoderCache& cache) { Tensor y(DType::f32, {4, 1, 8}); encoder.forward(one(x), y, cache); return y; };
  expect_whole_or_nothing_in_a_stack(a, b, 10, encode, encode_one);
  for (nn::EncoderCache* cache : {&a, &b}) cache->truncate(std::array<std::int64_t, 4>{2, 1, 0, 2});
  expect_whole_or_nothing_in_a_stack(a, b, 4, [&](nn::EncoderCache& cache) { cache.reorder(source); }, encode_one);
  expect_whole_or_nothing_in_a_stack(a, b, 0, [&](nn::EncoderCache& cache) { cache.truncate(std::array<std::int64_t, 4>{0, 1, 1, 1}); }, encode_one);

  nn::DecoderCache c(translator.decoder, memory, {.beams = 2, .capacity = 6}), d(translator.decoder, memory, {.beams = 2, .capacity = 6});
  const auto decode = [&](nn::DecoderCache& cache) { Tensor y(DType::f32, {4, 2, 7}); translator.decode(ids, y, cache); };
  const auto decode_one = [&](nn::DecoderCache& cache) { Tensor y(DType::f32, {4, 1, 7}); translator.decode(one(ids), y, cache); return y; };
  expect_whole_or_nothing_in_a_stack(c, d, 10, decode, decode_one);
  expect_whole_or_nothing_in_a_stack(c, d, 4, [&](nn::DecoderCache& cache) { cache.reorder(source); }, decode_one);
  const auto forward = [&](nn::DecoderCache& cache) { Tensor y(DType::f32, {4, 2, 8}); translator.decoder.forward(x, y, cache); };
  expect_whole_or_nothing_in_a_stack(c, d, 10, forward, decode_one);
}

TEST(FailedAllocations, ParametersAreLoadedWhollyOrNot) {
  const io::TestFolder folder;
  nn::FeedForward saved = layer(DType::f32, 1);
  nn::AdamW optimizer(saved);
  optimizer.step(saved, layer(DType::f32, 2));
  io::save_parameters(saved, optimizer, folder / "run.safetensors");
  io::save_parameters(saved, folder / "plain.safetensors");
  io::quantize_parameters(folder / "plain.safetensors", folder / "small.safetensors");
  nn::FeedForward model = layer(DType::f32, 3);
  expect_whole_or_nothing(model, 10, [&] { io::load_parameters(model, folder / "small.safetensors"); });
  nn::AdamW other(model);
  expect_whole_or_nothing(other, 10, [&] { io::load_parameters(model, other, folder / "run.safetensors"); });
  expect_same(state_of(model), state_of(saved));
  expect_same(state_of(other), state_of(optimizer));
}

TEST(FailedAllocations, AFailedAllocationDoesNotCountInThePeakOfAWorkspace) {
  const Workspace workspace;
  const auto tensor = [&](std::int64_t kibibytes) { return workspace.tensor(DType::u8, {kibibytes << 10}); };
  EXPECT_GT(run_out_of_memory([&] { tensor(250); }, [] {}), 0);
  for (const std::int64_t left : {0, 1}) {  // 0: no allocation succeeds; 1: only the first one succeeds
    bool failed = false;
    io::allocations_left = left;
    try {
      tensor(16 << 10);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    io::allocations_left = -1;
    EXPECT_TRUE(failed);
  }
  for (const std::int64_t size : {250, 100, 20, 45}) tensor(size);  // four tensors of different sizes in KiB, 415 KiB together
  EXPECT_LE(workspace.idle_bytes(), std::int64_t{250 * 3 / 2} << 10);
}

}  // namespace
}  // namespace polyhead
