// Compares an attention layer that reads a few tokens at a time through a cache with the same layer on whole sequences.
#include <gmock/gmock.h>

#include <array>
#include <numeric>

#include "nn/cache_test_feed.h"
#include "support/compare.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::near;
using test::Random;
using test::same_bits;
using testing::HasSubstr;

constexpr std::int64_t kSequences = 3, kTokens = 23;

struct CacheSetting {
  const char* name;
  MultiHeadAttentionConfig config;
  Mask mask{.causal = Causal::top_left()};
  std::optional<RotaryEmbeddingConfig> rotary{};
  std::optional<DType> storage{};  // dtype of the cache; absent: the layer's dtype
  bool alibi = false;

  // Checks that `out` has the same bits as the output for the whole sequence (docs/promises.md). If the cache has a narrower dtype than the layer, the values
  // must nearly agree.
  testing::AssertionResult agree(ConstTensorView out, ConstTensorView expected) const {
    return storage ? near(out, expected, 3e-2) : same_bits(out, expected);
  }
  friend void PrintTo(const CacheSetting& setting, std::ostream* out) { *out << setting.name; }
};

MultiHeadAttention drawn_layer(MultiHeadAttentionConfig config) {
  config.seed = 1;
  return MultiHeadAttention(config);
}

const CacheSetting kSettings[] = {
    {"plain", {.query_width = 16, .heads = 4}},
    {"grouped heads, rotary",
     {.query_width = 16, .heads = 4, .kv_heads = 2, .head_width = 8},
     {.causal = Causal::bottom_right()},
     {{.width = 8}}},
    {"float64, gate, partial rotary pairs, widths of values",
     {.query_width = 16, .heads = 4, .head_width = 6, .value_head_width = 3, .gate = Gate::sigmoid, .dtype = DType::f64},
     {.causal = Causal::top_left()},
     {{.width = 4, .order = RotaryOrder::pairs}}},
    {"window", {.query_width = 16, .heads = 2, .softcap = 3, .dtype = DType::f64}, {.window = {.left = 3, .right = 0}}},
    {"bfloat16, yarn",
     {.query_width = 32, .heads = 4, .kv_heads = 1, .dtype = DType::bf16},
     {.causal = Causal::top_left()},
     {{.width = 8, .scaling = RotaryScaling::yarn, .factor = 4, .original_max_position_embeddings = 16}}},
    {"int8 cache", {.query_width = 32, .heads = 4, .kv_heads = 2}, {.causal = Causal::top_left()}, {{.width = 8}}, DType::i8},
    {"bfloat16 cache, window", {.query_width = 16, .heads = 4}, {.causal = Causal::top_left(), .window = {.left = 5}}, {}, DType::bf16},
    {"float16 cache of a bfloat16 layer",
     {.query_width = 16, .heads = 2, .dtype = DType::bf16},
     {.causal = Causal::top_left()},
     {},
     DType::f16},
    {"ALiBi", {.query_width = 16, .heads = 4}, {.causal = Causal::top_left()}, {}, {}, true},
    {"ALiBi, bfloat16, window", {.query_width = 16, .heads = 2, .dtype = DType::bf16}, {.window = {.left = 3, .right = 0}}, {}, {}, true},
    {"along the first axis", {.query_width = 16, .heads = 4, .axis = 0, .dtype = DType::f64}},
};

class CachedAttention : public testing::TestWithParam<CacheSetting> {
 protected:
  CachedAttention() : setting_(GetParam()), layer_(drawn_layer(setting_.config)), config_(layer_.config) {
    Random random(3);
    layer_.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, -0.4, 0.4); });
    x_ = random.tensor(config_.dtype, {kSequences, kTokens, config_.query_width});
    if (setting_.alibi) slopes_ = alibi_slopes(config_.heads);
    if (setting_.rotary) embedding_.emplace(*setting_.rotary);
    cache_ = KeyValueCache({.sequences = kSequences,
                            .kv_heads = config_.kv_heads,
                            .capacity = kTokens + 4,
                            .head_width = config_.head_width,
                            .value_head_width = config_.value_head_width,
                            .dtype = setting_.storage.value_or(config_.dtype)});
  }

  Tensor whole(const Tensor& x) const {
    Tensor out(config_.dtype, x.shape());
    AttentionOptions options{.mask = setting_.mask, .relative_bias = {.slopes = slopes_}};
    if (options.mask.causal) options.mask.causal = Causal::top_left();
    if (options.mask.window.left) options.mask.window.diagonal = Diagonal::top_left();
    RotaryTables tables;
    if (embedding_) tables = embedding_->tables(0, x.extent(1)), options.rotary = tables.rotary();
    layer_.forward({.query = fed_.ordered(x.view())}, fed_.ordered(out.view()), options);
    return out;
  }

  CacheSetting setting_;
  MultiHeadAttention layer_;
  const MultiHeadAttentionConfig& config_;
  std::optional<RotaryEmbedding> embedding_;
  KeyValueCache cache_;
  Tensor x_, slopes_;
  CachedLayer fed_{layer_, setting_.mask, embedding_, slopes_, cache_};
};

INSTANTIATE_TEST_SUITE_P(Settings, CachedAttention, testing::ValuesIn(kSettings));

TEST_P(CachedAttention, TokenByTokenEqualsTheWholeSequence) {
  const Tensor expected = whole(x_);
  Tensor out(config_.dtype, x_.shape());
  for (std::int64_t t = 0; t < kTokens; ++t) fed_.feed(x_, {1, 1, 1}, out);
  EXPECT_TRUE(setting_.agree(out, expected));
}

TEST_P(CachedAttention, ChunksOfUnequalLengthsEqualTheWholeSequence) {
  const Tensor expected = whole(x_);
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    cache_.clear();
    Tensor out(config_.dtype, x_.shape());
    for (std::int64_t b = 0; b < kSequences;) {
      std::vector<std::int64_t> counts;
      for (std::int64_t i = 0; i < kSequences; ++i) counts.push_back(std::min(random.integer(0, 9), kTokens - cache_.length(i)));
      fed_.feed(x_, counts, out);
      while (b < kSequences && cache_.length(b) == kTokens) ++b;
    }
    EXPECT_TRUE(setting_.agree(out, expected));
  }
}

// A cache rounds each token separately, so the output must not depend on how the tokens are divided into calls.
TEST_P(CachedAttention, OutputDoesNotDependOnHowTokensAreDividedIntoCalls) {
  Tensor one(config_.dtype, x_.shape()), out(config_.dtype, x_.shape());
  fed_.feed(x_, {kTokens, kTokens, kTokens}, one);
  cache_.clear();
  for (std::int64_t t = 0; t < kTokens; ++t) fed_.feed(x_, {1, 1, 1}, out);
  EXPECT_TRUE(same_bits(out, one));
}

// After reorder(source), as in beam search, sequence b continues the text of sequence source[b].
TEST_P(CachedAttention, ReorderedSequencesGoOnFromTheirSource) {
  Tensor out(config_.dtype, x_.shape()), joined = Tensor::copy_of(x_);
  fed_.feed(x_, {8, 5, 11}, out);
  const std::array<std::int64_t, 3> source{2, 0, 0};
  const std::int64_t lengths[] = {11, 8, 8};
  cache_.reorder(source);
  for (std::int64_t b = 0; b < kSequences; ++b) {
    copy(x_.view().select(0, source[static_cast<std::size_t>(b)]).slice(0, 0, lengths[b]),
         joined.view().select(0, b).slice(0, 0, lengths[b]));
  }
  fed_.feed(joined, {6, 6, 6}, out);
  const Tensor expected = whole(joined);
  for (std::int64_t b = 0; b < kSequences; ++b) {
    const auto rows = [&](const Tensor& x) { return x.view().select(0, b).slice(0, lengths[b], lengths[b] + 6); };
    EXPECT_TRUE(setting_.agree(rows(out), rows(expected))) << b;
  }
}

// After truncate(), as in speculative decoding, the removed tokens must not affect later results.
TEST_P(CachedAttention, TruncatedTokensLeaveNoTrace) {
  const Tensor expected = whole(x_);
  Tensor out(config_.dtype, x_.shape()), wrong = Tensor::copy_of(x_);
  fill(wrong.view().slice(1, 9, kTokens), 3);
  fed_.feed(wrong, {13, 9, 12}, out);
  cache_.truncate(std::array<std::int64_t, 3>{9, 7, 9});
  fed_.feed(x_, {14, 16, 14}, out);
  EXPECT_TRUE(setting_.agree(out, expected));
}

TEST(CacheOfALayer, IsUnchangedIfForwardFails) {
  MultiHeadAttention layer({.query_width = 4, .heads = 2, .scale = 1e300, .seed = 1});  // the float32 kernels refuse a layer with this scale
  KeyValueCache cache({.sequences = 2, .kv_heads = 2, .capacity = 4, .head_width = 2});
  Random random(1);
  const Tensor x = random.tensor(DType::f32, {2, 3, 4}), counts = Tensor::of<std::int64_t>({2}, {1, 3});
  Tensor out(DType::f32, x.shape());
  layer.forward({.query = x}, out, {.cache = &cache, .new_tokens = counts});
  EXPECT_EQ(cache.length(1), 3);
  EXPECT_NE(error_message([&] {
              layer.forward({.query = x.view().slice(1, 0, 1)}, out.view().slice(1, 0, 1),
                            {.cache = &cache, .backend = &find_backend("cpu")});
            }),
            "");
  EXPECT_EQ(cache.length(0), 1);
  EXPECT_EQ(cache.length(1), 3);
  EXPECT_THAT(error_message([&] { layer.forward({.query = x}, out, {.cache = &cache}); }),
              HasSubstr("sequence 1 has 3 tokens and gets 3; the capacity is 4"));
  EXPECT_EQ(cache.length(0), 1);
}

// Without causal every query attends to all tokens of its sequence. The key axis of bias and masks must cover the cached keys and the new keys.
TEST(CacheOfALayer, TakesMasksOverTheCachedKeys) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .dtype = DType::f64, .seed = 2});
  KeyValueCache cache({.sequences = 2, .kv_heads = 2, .capacity = 5, .head_width = 2, .dtype = DType::f64});
  Random random(1);
  const Tensor x = random.tensor(DType::f64, {2, 5, 4}), bias = random.tensor(DType::f64, {2, 1, 2, 5});
  const Tensor attend_keys = Tensor::of<bool>({2, 5}, {true, false, true, true, true, true, true, true, false, true});
  Tensor first(DType::f64, {2, 3, 4}), out(DType::f64, {2, 2, 4}), expected(out);
  layer.forward({.query = x.view().slice(1, 0, 3)}, first, {.cache = &cache});
  const AttentionOptions options{.mask = {.attend_keys = attend_keys}, .bias = bias};
  AttentionOptions cached = options;
  cached.cache = &cache;
  layer.forward({.query = x.view().slice(1, 3, 5)}, out, cached);
  layer.forward({.query = x.view().slice(1, 3, 5), .key = x}, expected, options);
  EXPECT_TRUE(near(out, expected, 1e-14));
}

TEST(CacheOfALayer, IsRefusedWithInputsAndOptionsThatItCannotServe) {
  const Tensor x(DType::f32, {2, 3, 4}), deep(DType::f32, {2, 1, 3, 4}), lengths = Tensor::of<std::int64_t>({2}, {1, 1}),
                                                                         documents = Tensor::of<std::int32_t>({2}, {0, 3});
  Tensor out(x), deep_out(deep);
  const auto refused = [&](const MultiHeadAttentionConfig& config, AttentionOptions options, const AttentionInput& input, TensorView to,
                           MultiHeadAttention::Saved* saved = nullptr) {
    KeyValueCache cache({.sequences = 2, .kv_heads = 2, .capacity = 8, .head_width = 2});
    options.cache = &cache;
    const std::string message = error_message([&] { drawn_layer(config).forward(input, to, options, saved); });
    EXPECT_EQ(cache.longest(), 0) << message;
    return message;
  };
  const MultiHeadAttentionConfig plain{.query_width = 4, .heads = 2};
  MultiHeadAttention::Saved saved;
  EXPECT_EQ(refused(plain, {}, {.query = x}, out, &saved),
            "MultiHeadAttention.forward: a cache cannot be combined with saved activations; a pass with a cache has no backward pass");
  EXPECT_THAT(refused(plain, {.mode = Mode::training}, {.query = x}, out), HasSubstr("a cache cannot be used in training"));
  EXPECT_THAT(refused({.query_width = 4, .heads = 2, .add_zero_attn = true}, {}, {.query = x}, out),
              HasSubstr("a cache cannot be combined with add_bias_kv or add_zero_attn"));
  Tensor one(DType::f32, {2, 1, 4});
  EXPECT_THAT(refused({.query_width = 4, .heads = 2, .global_query = GlobalQuery::mean}, {}, {.query = x}, one),
              HasSubstr("a cache cannot be combined with a global query"));
  EXPECT_THAT(refused(plain, {}, {.query = x, .key = x}, out), HasSubstr("a cache cannot be combined with key;"));
  const Tensor heads(DType::f32, {2, 2, 3, 2});
  EXPECT_THAT(refused(plain, {}, {.query = x, .projected_key = heads, .projected_value = heads}, out),
              HasSubstr("a cache cannot be combined with projected_key;"));
  EXPECT_THAT(refused(plain, {.mask = {.query_offsets = documents}}, {.query = x}, out), HasSubstr("a cache cannot be combined with documents"));
  EXPECT_THAT(refused(plain, {.mask = {.key_lengths = lengths}}, {.query = x}, out), HasSubstr("a cache cannot be combined with key_lengths"));
  EXPECT_THAT(refused(plain, {.mask = {.causal = Causal::top_left(), .diagonal_offsets = lengths}}, {.query = x}, out),
              HasSubstr("a cache cannot be combined with diagonal_offsets"));
  EXPECT_THAT(refused(plain, {.mask = {.causal = Causal::offset(1)}}, {.query = x}, out),
              HasSubstr("a cache cannot be combined with an offset of the diagonal"));
  const Tensor slopes(DType::f32, {2});
  EXPECT_THAT(refused(plain, {.relative_bias = {.slopes = slopes, .diagonal = Diagonal::top_left()}}, {.query = x}, out),
              HasSubstr("a cache cannot be combined with a diagonal of relative_bias"));
  EXPECT_THAT(refused(plain, {}, {.query = deep}, deep_out), HasSubstr("leading dimensions [2,1]; the cache has 2 sequences"));
  EXPECT_THAT(refused({.query_width = 4, .heads = 4}, {}, {.query = x}, out),
              HasSubstr("the cache has 2 heads of widths 2 and 2; the layer has 4 of 1 and 1"));
  const Tensor doubles(DType::f64, {2, 3, 4});
  Tensor doubles_out(doubles);
  EXPECT_THAT(refused({.query_width = 4, .heads = 2, .dtype = DType::f64}, {}, {.query = doubles}, doubles_out),
              HasSubstr("the cache is float32 and the layer float64; a cache is"));
  const Tensor bias(DType::f32, {3, 4});  // with the tokens of this call there would be S = 3 keys, so a bias with S = 4 is an Error
  EXPECT_THAT(refused(plain, {.bias = bias}, {.query = x}, out), HasSubstr("bias is [3,4]; it must be [T,S]"));
  EXPECT_THAT(error_message([&] { drawn_layer(plain).forward({.query = x}, out, {.new_tokens = lengths}); }),
              HasSubstr("new_tokens is given without a cache"));
}

}  // namespace
}  // namespace polyhead::nn
