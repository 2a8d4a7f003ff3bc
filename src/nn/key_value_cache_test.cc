// Compares the key/value cache, over random operations, with plain lists of the tokens of each sequence.
#include "polyhead/nn/key_value_cache.h"

#include <gmock/gmock.h>

#include <array>
#include <numeric>

#include "polyhead/quantize.h"
#include "polyhead/sdpa.h"
#include "support/compare.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::Random;
using test::same_bits;
using testing::HasSubstr;

// The key or the value of one token: [K,1,W] in the dtype of a cache, and its scales [K,1].
struct Token {
  Token(ConstTensorView x, DType dtype) {
    if (dtype != DType::i8) {
      elements = Tensor::copy_of(x, dtype);
      return;
    }
    elements = Tensor(dtype, x.shape()), scales = Tensor(DType::f32, x.shape().first(2));
    quantize_rows(x, elements, scales);
  }
  Tensor elements, scales;
};

// The sequences that the cache should hold, as lists of tokens.
struct Lists {
  std::vector<std::vector<Token>> keys, values;

  explicit Lists(std::int64_t sequences) : keys(static_cast<std::size_t>(sequences)), values(keys) {}
  void append(ConstTensorView k, ConstTensorView v, const std::vector<std::int64_t>& counts, DType dtype) {
    for (std::size_t b = 0; b < keys.size(); ++b) {
      for (std::int64_t t = 0; t < counts[b]; ++t) {
        const auto token = [&](ConstTensorView x) { return Token(x.select(0, static_cast<std::int64_t>(b)).slice(1, t, t + 1), dtype); };
        keys[b].push_back(token(k)), values[b].push_back(token(v));
      }
    }
  }
};

void expect_same(const KeyValueCache& cache, const Lists& lists) {
  std::int64_t longest = 0;
  for (std::size_t b = 0; b < lists.keys.size(); ++b) {
    const auto index = static_cast<std::int64_t>(b), length = std::ssize(lists.keys[b]);
    longest = std::max(longest, length);
    ASSERT_EQ(cache.length(index), length);
    ASSERT_EQ(cache.key_lengths().data<std::int64_t>()[b], length);
    for (std::int64_t t = 0; t < length; ++t) {
      const auto stored = [&](ConstTensorView view) { return view.select(0, index).slice(1, t, t + 1); };
      const Token &key = lists.keys[b][static_cast<std::size_t>(t)], &value = lists.values[b][static_cast<std::size_t>(t)];
      ASSERT_TRUE(same_bits(stored(cache.keys()), key.elements)) << b << " " << t;
      ASSERT_TRUE(same_bits(stored(cache.values()), value.elements)) << b << " " << t;
      ASSERT_EQ(static_cast<bool>(cache.key_scales()), static_cast<bool>(key.scales));
      if (!key.scales) continue;
      ASSERT_TRUE(same_bits(stored(cache.key_scales()), key.scales)) << b << " " << t;
      ASSERT_TRUE(same_bits(stored(cache.value_scales()), value.scales)) << b << " " << t;
    }
  }
  ASSERT_EQ(cache.longest(), longest);
  ASSERT_EQ(cache.keys().extent(2), longest);
}

Tensor counts_tensor(const std::vector<std::int64_t>& counts, DType dtype) {
  return Tensor::copy_of(Tensor::of<std::int64_t>({std::ssize(counts)}, std::span(counts)), dtype);
}

TEST(KeyValueCache, WithoutSequencesIsReordered) {
  KeyValueCache cache;
  cache.reorder({});
  EXPECT_EQ(cache.sequences(), 0);
}

TEST(KeyValueCache, EqualsListsOfTokensAfterRandomCalls) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const DType dtype = random.pick({DType::f32, DType::f64, DType::bf16, DType::f16, DType::i8}),
                given = random.pick({DType::f32, DType::f64, DType::bf16});
    const std::int64_t sequences = random.integer(1, 6), heads = random.integer(1, 3), capacity = 40, width = random.integer(1, 9);
    const std::int64_t value_width = random.coin() ? width : random.integer(1, 9);
    KeyValueCache cache({.sequences = sequences,
                         .kv_heads = heads,
                         .capacity = capacity,
                         .head_width = width,
                         .value_head_width = value_width,
                         .dtype = dtype});
    Lists lists(sequences);
    const void* const memory = cache.all_keys().data();
    for (int step = 0; step < 25; ++step) {
      const auto any = [&] { return random.integer(0, sequences - 1); };
      switch (random.integer(0, 5)) {
        case 0: {  // reorder(): sources repeat, form cycles, or stay in place
          std::vector<std::int64_t> source(static_cast<std::size_t>(sequences));
          std::iota(source.begin(), source.end(), 0);
          if (random.coin()) {
            for (std::int64_t& b : source) b = any();
          } else {
            std::rotate(source.begin(), source.begin() + any(), source.end());
          }
          cache.reorder(source);
          Lists before = lists;
          for (std::size_t b = 0; b < source.size(); ++b) {
            lists.keys[b] = before.keys[static_cast<std::size_t>(source[b])],
            lists.values[b] = before.values[static_cast<std::size_t>(source[b])];
          }
          break;
        }
        case 1: {
          const auto from = any(), to = any();
          cache.copy_sequence(from, to);
          lists.keys[static_cast<std::size_t>(to)] = std::vector(lists.keys[static_cast<std::size_t>(from)]);
          lists.values[static_cast<std::size_t>(to)] = std::vector(lists.values[static_cast<std::size_t>(from)]);
          break;
        }
        case 2: {
          const std::int64_t b = any(), length = random.integer(0, cache.length(b));
          cache.truncate(b, length);
          for (auto* tokens : {&lists.keys[static_cast<std::size_t>(b)], &lists.values[static_cast<std::size_t>(b)]}) {
            tokens->erase(tokens->begin() + length, tokens->end());
          }
          break;
        }
        default: {
          const std::int64_t tokens = random.integer(0, 5);
          std::vector<std::int64_t> counts(static_cast<std::size_t>(sequences), tokens);
          const bool unequal = random.coin();
          for (std::size_t b = 0; unequal && b < counts.size(); ++b) counts[b] = random.integer(0, tokens);
          const bool fits = std::ranges::all_of(counts, [&](std::int64_t& c) { return cache.length(&c - counts.data()) + c <= capacity; });
          const test::StridedTensor k = random.strided(given, {sequences, heads, tokens, width}),
                                    v = random.strided(given, {sequences, heads, tokens, value_width});
          const Tensor new_tokens = unequal ? counts_tensor(counts, DType::i16) : Tensor();
          if (!fits) {
            EXPECT_THAT(error_message([&] { cache.append(k, v, new_tokens); }), HasSubstr("the capacity is 40"));
            break;
          }
          cache.append(k, v, new_tokens);
          lists.append(k, v, counts, dtype);
          break;
        }
      }
      expect_same(cache, lists);
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(cache.all_keys().data(), memory);
    cache.clear();
    EXPECT_EQ(cache.longest(), 0);
  }
}

TEST(KeyValueCache, WorksInTheCallersMemory) {
  Random random(1);
  Tensor keys(DType::f32, {2, 6, 3, 4}), values(DType::f32, {2, 3, 6, 5});
  const TensorView swapped = keys.view().transpose(1, 2);  // [2,3,6,4]: in memory, the axis of tokens lies before the axis of heads
  const Tensor k = random.tensor(DType::f32, {2, 3, 2, 4}), v = random.tensor(DType::f32, {2, 3, 2, 5});
  const std::int64_t lengths[] = {1, 3};
  KeyValueCache cache(swapped, values, lengths);
  cache.append(k, v);
  EXPECT_EQ(cache.keys().data(), keys.view().data());
  EXPECT_TRUE(same_bits(swapped.select(0, 1).slice(1, 3, 5), k.view().select(0, 1)));
  EXPECT_TRUE(same_bits(values.view().select(0, 0).slice(1, 1, 3), v.view().select(0, 0)));
  cache.reorder(std::array<std::int64_t, 2>{1, 0});
  EXPECT_EQ(cache.length(0), 5);
  EXPECT_TRUE(same_bits(swapped.select(0, 1).slice(1, 1, 3), k.view().select(0, 0)));
  EXPECT_THAT(error_message([&] { KeyValueCache(swapped, swapped); }), HasSubstr("overlap"));
  Tensor bytes(DType::i8, {2, 3, 6, 4}), more(bytes), scales(DType::f32, {2, 3, 6}), more_scales(scales);
  KeyValueCache(bytes, more, {}, scales, more_scales).append(k, k);
  EXPECT_GT(scales.data<float>()[0], 0);
  EXPECT_THAT(error_message([&] { KeyValueCache(bytes, more); }), HasSubstr("key_scales is missing; int8 keys and values have scales"));
  EXPECT_THAT(error_message([&] { KeyValueCache(bytes, more, {}, scales, keys); }),
              HasSubstr("value_scales is float32 [2,6,3,4]; it must be float32 [B,K,capacity] = [2,3,6]"));
  EXPECT_THAT(error_message([&] { KeyValueCache(swapped, values, {}, scales, more_scales); }),
              HasSubstr("key_scales is given without int8"));
  const std::int64_t wrong[] = {1, 7};
  EXPECT_THAT(error_message([&] { KeyValueCache(swapped, values, wrong); }),
              HasSubstr("one of lengths is 7; it must lie in [0,capacity] = [0,6]"));
}

// A sequence that is computed in chunks of unequal lengths, each with the mask of causal_mask(), must have the same bits as one causal call over the whole
// sequence.
TEST(KeyValueCache, CausalMaskGivesTheBitsOfTheWholeSequence) {
  Random random(5);
  const Tensor q = random.tensor(DType::f64, {2, 4, 9, 8}), k = random.tensor(DType::f64, {2, 2, 9, 8}),
               v = random.tensor(DType::f64, {2, 2, 9, 8});
  Tensor whole(DType::f64, q.shape());
  sdpa_forward({.q = q, .k = k, .v = v, .out = whole}, {.mask = {.causal = Causal::top_left()}});
  KeyValueCache cache({.sequences = 2, .kv_heads = 2, .capacity = 9, .head_width = 8, .dtype = DType::f64});
  for (const std::vector<std::int64_t>& counts : {std::vector<std::int64_t>{3, 1}, {0, 2}, {1, 4}, {5, 2}}) {
    const std::int64_t tokens = std::ranges::max(counts), first[] = {cache.length(0), cache.length(1)};
    const auto chunk = [&](const Tensor& x) {  // [2,heads,tokens,8]; rows beyond a sequence's count are later tokens, or zeros
      Tensor some(DType::f64, {2, x.extent(1), tokens, 8});
      for (std::int64_t b = 0; b < 2; ++b) {
        const std::int64_t begin = std::min<std::int64_t>(first[b], 9 - tokens), shift = first[b] - begin;
        copy(x.view().select(0, b).slice(1, begin + shift, begin + tokens), some.view().select(0, b).slice(1, 0, tokens - shift));
      }
      return some;
    };
    const Tensor queries = chunk(q), new_k = chunk(k), new_v = chunk(v);
    const Tensor new_tokens = counts_tensor(counts, DType::i64);
    cache.append(new_k, new_v, new_tokens);
    Tensor out(DType::f64, queries.shape());
    sdpa_forward({.q = queries, .k = cache.keys(), .v = cache.values(), .out = out}, {.mask = cache.causal_mask()});
    for (std::int64_t b = 0; b < 2; ++b) {
      const std::int64_t count = counts[static_cast<std::size_t>(b)];
      EXPECT_TRUE(same_bits(out.view().select(0, b).slice(1, 0, count), whole.view().select(0, b).slice(1, first[b], first[b] + count)));
    }
  }
  EXPECT_EQ(cache.length(0), 9);
  EXPECT_EQ(cache.length(1), 9);
}

TEST(KeyValueCache, Messages) {
  KeyValueCache cache({.sequences = 2, .kv_heads = 1, .capacity = 4, .head_width = 3});
  const Tensor k(DType::f32, {2, 1, 3, 3}), v(k), wide(DType::f32, {2, 1, 3, 4}), integers(DType::i32, {2, 1, 3, 3});
  cache.append(k, v);
  const auto appended = [&](ConstTensorView a, ConstTensorView b, ConstTensorView counts = {}) {
    return error_message([&] { cache.append(a, b, counts); });
  };
  EXPECT_THAT(appended(k, v), HasSubstr("KeyValueCache.append: sequence 0 has 3 tokens and gets 3; the capacity is 4"));
  EXPECT_THAT(appended(wide, v), HasSubstr("k is float32 [2,1,3,4]; it must be floating [B,K,T,H]"));
  EXPECT_THAT(appended(k, wide), HasSubstr("v is float32 [2,1,3,4]; it must be floating [B,K,T,V]"));
  EXPECT_THAT(appended(integers, v), HasSubstr("k is int32"));
  EXPECT_THAT(appended({}, v), HasSubstr("k is missing"));
  EXPECT_THAT(appended(cache.keys(), v), HasSubstr("overlap"));
  const Tensor negative = Tensor::of<std::int32_t>({2}, {1, -1}), many = Tensor::of<std::int64_t>({2}, {1, 4}), floats(DType::f32, {2}),
               three(DType::i64, {3});
  EXPECT_THAT(appended(k, v, negative), HasSubstr("new_tokens[1] is -1; it must lie in [0,T] = [0,3]"));
  EXPECT_THAT(appended(k, v, many), HasSubstr("new_tokens[1] is 4"));
  EXPECT_THAT(appended(k, v, floats), HasSubstr("new_tokens is float32 [2]; it must be integers [B] = [2]"));
  EXPECT_THAT(appended(k, v, three), HasSubstr("new_tokens is int64 [3]"));
  EXPECT_EQ(cache.length(0), 3);
  EXPECT_THAT(error_message([&] { cache.truncate(1, 4); }), HasSubstr("sequence 1 has 3 tokens and cannot be cut to 4"));
  EXPECT_THAT(error_message([&] { cache.truncate(2, 0); }), HasSubstr("sequence 2; sequences lie in [0,2)"));
  EXPECT_THAT(error_message([&] { cache.reorder(std::array<std::int64_t, 2>{0, 2}); }), HasSubstr("reorder: there is no sequence 2; sequences lie in [0,2)"));
  EXPECT_THAT(error_message([&] { cache.reorder(std::array<std::int64_t, 1>{0}); }), HasSubstr("1 sources for 2 sequences"));
  EXPECT_THAT(error_message([&] { cache.copy_sequence(-1, 0); }), HasSubstr("sequence -1"));
  EXPECT_THAT(error_message([] { KeyValueCache({.sequences = -1}); }), HasSubstr("sequences is -1"));
  EXPECT_THAT(error_message([] { KeyValueCache({.dtype = DType::i16}); }), HasSubstr("dtype is int16; it must be float32"));
  EXPECT_THAT(error_message([&] { KeyValueCache().append(k, v); }), HasSubstr("has no memory"));
}

}  // namespace
}  // namespace polyhead::nn
