// Compares stacks that read a few tokens at a time through a cache with the same stacks on each whole sequence alone.
#include "polyhead/nn/stack_cache.h"

#include <array>

#include "polyhead/nn/rotary_embedding.h"
#include "support/compare.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::near;
using test::Random;

constexpr std::int64_t kWidth = 8, kLength = 9;

LayerConfig encoder_layer(NormPosition position) {
  return {.width = kWidth, .heads = 2, .hidden_width = 7, .norm_position = position, .dtype = DType::f64, .seed = 1};
}

LayerConfig decoder_layer(NormPosition position) {
  return {.width = kWidth, .memory_width = 6, .heads = 2, .hidden_width = 7, .norm_position = position, .dtype = DType::f64, .seed = 2};
}

Tensor rows_like(const Tensor& x) { return Tensor(x.dtype(), x.shape()); }

TEST(StackCache, AnEncoderInSeveralCallsEqualsTheWholeSequence) {
  for (const NormPosition position : {NormPosition::post, NormPosition::pre}) {
    Random random(3);
    const Encoder encoder(encoder_layer(position), 3);
    const Tensor x = random.tensor(DType::f64, {2, kLength, kWidth});
    const RotaryEmbedding rotary({.width = 4});
    const Tensor start = Tensor::of<std::int64_t>({2}, {0, 0});
    const RotaryTables all = rotary.tables_from(start, kLength);
    const Mask causal{.causal = Causal::top_left()};
    Tensor whole = rows_like(x);
    encoder.forward(x, whole, {.mask = causal, .rotary = all.rotary()});
    EncoderCache cache(encoder, {.sequences = 2, .capacity = kLength});
    for (int round = 0; round < 2; ++round) {  // the second round reuses the memory of the first round
      Tensor parts = rows_like(x);
      for (std::int64_t begin = 0, end = 4; begin < kLength; begin = end++) {
        const RotaryTables own = rotary.tables_from(cache.key_lengths(), end - begin);
        encoder.forward(x.view().slice(1, begin, end), parts.view().slice(1, begin, end), cache, {.mask = causal, .rotary = own.rotary()});
        EXPECT_EQ(cache.length(1), end);
      }
      EXPECT_TRUE(near(parts, whole, 1e-12));
      cache.clear();
    }
  }
}

TEST(StackCache, SequencesOfAnEncoderMayHaveDifferentLengths) {
  Random random(4);
  const Encoder encoder(encoder_layer(NormPosition::pre), 2);
  const Tensor x = random.tensor(DType::f64, {2, kLength, kWidth});
  const AttentionOptions options{.mask = {.causal = Causal::top_left()}};
  Tensor whole = rows_like(x), first = rows_like(x), next(DType::f64, {2, 1, kWidth}), y(DType::f64, {2, 1, kWidth});
  encoder.forward(x, whole, options);
  const Tensor counts = Tensor::of<std::int64_t>({2}, {5, 2});
  EncoderCache cache(encoder, {.sequences = 2, .capacity = kLength});
  AttentionOptions some = options;
  some.new_tokens = counts;
  encoder.forward(x, first, cache, some);
  cache.truncate(std::array<std::int64_t, 2>{4, 2});
  for (const auto& [b, at] : {std::pair{0, 4}, std::pair{1, 2}}) copy(x.view().select(0, b).slice(0, at, at + 1), next.view().select(0, b));
  encoder.forward(next, y, cache, options);
  EXPECT_TRUE(near(y.view().select(0, 0), whole.view().select(0, 0).slice(0, 4, 5), 1e-12));
  EXPECT_TRUE(near(y.view().select(0, 1), whole.view().select(0, 1).slice(0, 2, 3), 1e-12));
}

TEST(StackCache, ACallMustSayWhetherTokensAttendToLaterTokens) {
  Random random(5);
  const Encoder encoder(encoder_layer(NormPosition::pre), 2);
  const Tensor x = random.tensor(DType::f64, {2, 3, kWidth});
  Tensor y = rows_like(x), whole = rows_like(x);
  const auto part = [](auto& tensor, std::int64_t tokens) { return tensor.view().slice(1, 0, tokens); };
  const auto told = [&](const AttentionOptions& options) {
    EncoderCache cache(encoder, {.sequences = 2, .capacity = 3});
    encoder.forward(x, y, cache, options);
  };
  const Tensor square = Tensor::of<bool>({3, 3}, {true, false, false, true, true, false, true, true, true}), padding = Tensor::of<bool>({2, 1, 1, 3}, {true, true, true, true, true, false}),
               bias(DType::f64, {3, 3});
  const std::string message =
      "Encoder.forward: 3 tokens with a cache, and the mask does not say whether a token attends to later tokens; set .mask = {.causal = Causal::top_left()}, or "
      "attend_later_tokens";
  for (const AttentionOptions& silent : {AttentionOptions{}, AttentionOptions{.mask = {.window = {.left = 1}}}, AttentionOptions{.mask = {.attend = padding}}, AttentionOptions{.bias = bias}}) {
    EncoderCache cache(encoder, {.sequences = 2, .capacity = 3});
    EXPECT_EQ(error_message([&] { encoder.forward(x, y, cache, silent); }), message);
    EXPECT_EQ(cache.length(0), 0);
    KeyValueCache one({.sequences = 2, .kv_heads = 2, .capacity = 3, .head_width = 4, .dtype = DType::f64});
    AttentionOptions of_layer = silent;
    of_layer.cache = &one;
    EXPECT_EQ(error_message([&] { encoder.layers[0].forward(x, y, of_layer); }), "EncoderLayer" + message.substr(7));
  }
  // If each call has only one token, there are no later tokens, so attend_later_tokens must change nothing.
  EncoderCache cache(encoder, {.sequences = 2, .capacity = 3});
  encoder.forward(part(x, 1), part(y, 1), cache);

  encoder.forward(x, whole);
  told({.attend_later_tokens = true});
  EXPECT_TRUE(near(y, whole, 1e-12));
  encoder.forward(x, whole, {.mask = {.causal = Causal::top_left()}});
  for (const AttentionOptions& causal : {AttentionOptions{.mask = {.causal = Causal::top_left()}}, AttentionOptions{.mask = {.causal = Causal::bottom_right()}},
                                         AttentionOptions{.mask = {.window = {.right = 0}}}, AttentionOptions{.mask = {.attend = square}}}) {
    told(causal);
    EXPECT_TRUE(near(y, whole, 1e-12));
  }
  EXPECT_EQ(error_message([&] { told({.mask = {.causal = Causal::top_left()}, .attend_later_tokens = true}); }),
            "MultiHeadAttention.forward: attend_later_tokens cannot be combined with a causal mask, which masks all later tokens");
  EXPECT_EQ(error_message([&] { encoder.forward(x, y, {.attend_later_tokens = true}); }), "MultiHeadAttention.forward: attend_later_tokens is given without a cache");
}

TEST(StackCache, APreNormStackWithoutItsFinalNormIsRefused) {
  const Tensor x(DType::f64, {2, 3, kWidth}), memory(DType::f64, {2, 5, 6});
  Tensor y = rows_like(x);
  const std::string message = " layer 1 norms its input and final_norm is absent, so nothing would norm y; set final_norm, or norm_position of the layers to post";
  // This stack is made layer by layer, and its attention is replaced by attention with grouped heads.
  Encoder encoder;
  for (int i = 0; i < 2; ++i) {
    encoder.layers.emplace_back(encoder_layer(NormPosition::pre));
    encoder.layers.back().attention = MultiHeadAttention({.query_width = kWidth, .heads = 2, .kv_heads = 1, .dtype = DType::f64, .seed = 3});
  }
  Decoder decoder(decoder_layer(NormPosition::pre), 2);
  const Norm norm = decoder.final_norm;
  EncoderCache encoder_cache(encoder, {.sequences = 2, .capacity = 3});
  DecoderCache decoder_cache(decoder, memory, {.capacity = 3});
  decoder.final_norm = {};
  EXPECT_EQ(error_message([&] { encoder.forward(x, y); }), "Encoder.forward:" + message);
  EXPECT_EQ(error_message([&] { encoder.forward(x, y, encoder_cache, {.attend_later_tokens = true}); }), "Encoder.forward:" + message);
  EXPECT_EQ(error_message([&] { decoder.forward(x, memory, y); }), "Decoder.forward:" + message);
  EXPECT_EQ(error_message([&] { decoder.forward(x, y, decoder_cache); }), "Decoder.forward:" + message);
  EXPECT_EQ(encoder_cache.length(0) + decoder_cache.length(0), 0);
  encoder.final_norm = decoder.final_norm = norm;
  encoder.forward(x, y);
  decoder.forward(x, memory, y);
  encoder.final_norm = {};
  encoder.layers[1].norm_position = NormPosition::post;  // a last layer that ends with a norm needs no final_norm
  encoder.forward(x, y);
}

TEST(StackCache, ViewsOfLengthsStayValid) {
  const Encoder encoder(encoder_layer(NormPosition::post), 2);
  const Tensor x(DType::f64, {2, 1, kWidth});
  Tensor y = rows_like(x);
  EncoderCache cache(encoder, {.sequences = 2, .capacity = 9});
  const ConstTensorView lengths = cache.key_lengths();
  for (std::int64_t tokens = 1; tokens < 6; ++tokens) {
    encoder.forward(x, y, cache);
    EXPECT_EQ(test::to_doubles(lengths), (std::vector<double>(2, static_cast<double>(tokens))));
  }
  cache.reorder(std::array<std::int64_t, 2>{1, 0});
  cache.truncate(std::array<std::int64_t, 2>{3, 2});
  EXPECT_EQ(test::to_doubles(lengths), (std::vector<double>{3, 2}));
  EXPECT_EQ(lengths.data(), cache.key_lengths().data());
}

// Two memories have different lengths, and three beams read each of them. Each row of a step must equal the last row of a forward pass over the beam's whole
// text with the beam's memory, cut to its length. After the cache is made, the projections of the memory are overwritten, because no step may read them.
TEST(StackCache, EachBeamOfADecoderEqualsThatBeamAlone) {
  constexpr std::int64_t kBeams = 3, kRows = 2 * kBeams, kPrefill = 3;
  for (const NormPosition position : {NormPosition::post, NormPosition::pre}) {
    for (const bool by_lengths : {true, false}) {
      Random random(5);
      const Decoder whole(decoder_layer(position), 3);
      Decoder decoder(decoder_layer(position), 3);
      const Tensor memory = random.tensor(DType::f64, {2, 5, 6}), prefill = random.tensor(DType::f64, {kRows, kPrefill, kWidth});
      const std::array<std::int64_t, 2> lengths{5, 2};
      DecoderCache cache;
      {
        const Tensor key_lengths = Tensor::of<std::int64_t>({2}, std::span(lengths));
        const Tensor block = Tensor::of<bool>({2, 5}, {false, false, false, false, false, false, false, true, true, true});
        Tensor spoilt = Tensor::copy_of(memory);
        fill(spoilt.view().select(0, 1).slice(0, 2, 5), test::kNaN);
        Mask mask;
        (by_lengths ? mask.key_lengths : mask.block_keys) = by_lengths ? key_lengths : block;
        cache = DecoderCache(decoder, spoilt, {.beams = kBeams, .capacity = kLength, .memory_mask = mask});
      }
      for (DecoderLayer& layer : decoder.layers) fill(layer.cross_attention.k.weight, test::kNaN), fill(layer.cross_attention.v.weight, test::kNaN);
      std::vector<Tensor> texts;  // for each row its text [tokens,E]
      for (std::int64_t r = 0; r < kRows; ++r) texts.push_back(Tensor::copy_of(prefill.view().select(0, r)));
      Tensor y = rows_like(prefill);
      decoder.forward(prefill, y, cache);
      for (std::int64_t tokens = kPrefill;; ++tokens) {
        for (std::int64_t r = 0; r < kRows; ++r) {
          const std::int64_t b = r / kBeams;
          const Tensor& text = texts[static_cast<std::size_t>(r)];
          Tensor alone = rows_like(text);
          whole.forward(text.view().unsqueeze(0), memory.view().slice(0, b, b + 1).slice(1, 0, lengths[static_cast<std::size_t>(b)]), alone.view().unsqueeze(0));
          EXPECT_EQ(cache.length(r), tokens);
          EXPECT_TRUE(near(y.view().select(0, r), alone.view().slice(0, tokens - y.extent(1), tokens), 1e-12)) << "row " << r << ", token " << tokens;
        }
        if (tokens == kLength) break;
        std::vector<std::int64_t> parents;
        for (std::int64_t r = 0; r < kRows; ++r) parents.push_back(r / kBeams * kBeams + random.integer(0, kBeams - 1));
        const Tensor next = random.tensor(DType::f64, {kRows, 1, kWidth});
        std::vector<Tensor> longer;
        for (std::int64_t r = 0; r < kRows; ++r) {
          Tensor& text = longer.emplace_back(DType::f64, Shape{tokens + 1, kWidth});
          copy(texts[static_cast<std::size_t>(parents[static_cast<std::size_t>(r)])], text.view().slice(0, 0, tokens));
          copy(next.view().select(0, r), text.view().slice(0, tokens, tokens + 1));
        }
        texts = std::move(longer);
        cache.reorder(parents);
        y = rows_like(next);
        decoder.forward(next, y, cache);
      }
    }
  }
}

TEST(StackCache, ExtentsMayBeZero) {
  const Decoder decoder(decoder_layer(NormPosition::post), 2);
  for (const auto& [batch, queries, keys] : {std::tuple{0, 3, 2}, std::tuple{2, 0, 2}, std::tuple{2, 3, 0}}) {
    const Tensor x(DType::f64, {2 * batch, queries, kWidth}), memory(DType::f64, {batch, keys, 6});
    Tensor y = rows_like(x);
    DecoderCache cache(decoder, memory, {.beams = 2, .capacity = 3});
    decoder.forward(x, y, cache);
    EXPECT_EQ(cache.sequences(), 2 * batch);
  }
}

TEST(StackCache, ErrorsSayWhatWasGivenAndLeaveTheCacheAsItWas) {
  const Encoder encoder(encoder_layer(NormPosition::post), 2);
  const Decoder decoder(decoder_layer(NormPosition::post), 2);
  const Tensor x(DType::f64, {2, 3, kWidth}), memory(DType::f64, {2, 5, 6}), narrow(DType::f64, {2, 5, 4});
  Tensor y = rows_like(x);
  EncoderCache cache(encoder, {.sequences = 2, .capacity = 4});
  encoder.forward(x.view().slice(1, 0, 2), y.view().slice(1, 0, 2), cache, {.mask = {.causal = Causal::top_left()}});
  EXPECT_EQ(error_message([&] { encoder.forward(x, y, cache, {.mask = {.causal = Causal::top_left()}}); }),
            "KeyValueCache.append: sequence 0 has 2 tokens and gets 3; the capacity is 4");
  const auto first = [](auto& tensor) { return tensor.view().slice(1, 0, 1); };
  Encoder other = encoder;
  other.layers[1].attention.config.kv_heads = 1;  // with this setting the second layer refuses the call, after the first layer has appended its keys
  EXPECT_NE(error_message([&] { other.forward(first(x), first(y), cache); }), "");
  EXPECT_NE(error_message([&] { encoder.forward(first(x), first(y), cache, {.mode = Mode::training}); }).find("a cache cannot be used in training"), std::string::npos);
  EXPECT_EQ(cache.length(0), 2);
  Tensor again = rows_like(x);
  encoder.forward(x.view().slice(1, 2, 3), again.view().slice(1, 2, 3), cache, {.mask = {.causal = Causal::top_left()}});
  encoder.forward(x, y, {.mask = {.causal = Causal::top_left()}});
  EXPECT_TRUE(near(again.view().slice(1, 2, 3), y.view().slice(1, 2, 3), 1e-12));
  other.layers.pop_back();
  EXPECT_EQ(error_message([&] { other.forward(first(x), first(y), cache); }), "Encoder.forward: the cache has 2 layers; this stack has 1");
  KeyValueCache one({.sequences = 2, .kv_heads = 2, .capacity = 5, .head_width = 4, .dtype = DType::f64});
  EXPECT_EQ(error_message([&] { encoder.forward(x, y, {.cache = &one}); }),
            "Encoder.forward: the option cache is for one layer; for a stack use EncoderCache");
  EXPECT_EQ(error_message([&] { encoder.forward(x, y, cache, {.cache = &one}); }),
            "Encoder.forward: a cache is given as an argument and in the options; the option is for a single layer");

  EXPECT_EQ(error_message([&] { DecoderCache(decoder, x.view().select(0, 0), {.capacity = 4}); }), "DecoderCache: memory is [3,8]; it must be [B,S,M]");
  EXPECT_EQ(error_message([&] { DecoderCache(decoder, narrow, {.capacity = 4}); }),
            "DecoderCache: memory is [2,5,4]; its last extent must be memory_width = 6");
  EXPECT_EQ(error_message([&] { DecoderCache(decoder, memory, {.beams = 0, .capacity = 4}); }), "DecoderCache: beams is 0; it must be at least 1");
  const Tensor lengths = Tensor::of<std::int64_t>({4}, {1, 2, 3, 4}), pairs(DType::boolean, {3, 5});
  EXPECT_EQ(error_message([&] { DecoderCache(decoder, memory, {.beams = 2, .capacity = 4, .memory_mask = {.key_lengths = lengths}}); }),
            "DecoderCache: memory_mask.key_lengths is [4]; it must be [2]");
  EXPECT_NE(error_message([&] { DecoderCache(decoder, memory, {.capacity = 4, .memory_mask = {.attend = pairs}}); }).find("memory_mask has attend;"), std::string::npos);
  EXPECT_NE(error_message([&] { DecoderCache(decoder, memory, {.capacity = 4, .memory_mask = {.window = {.left = 1}}}); }).find("has a diagonal"), std::string::npos);
  DecoderCache beams(decoder, memory, {.beams = 2, .capacity = 4});
  EXPECT_EQ(error_message([&] { beams.reorder(std::array<std::int64_t, 4>{0, 0, 1, 2}); }),
            "DecoderCache.reorder: sequence 2 would become sequence 1, which reads another memory; with 2 beams the sequences of memory 1 are 2 to 3");
  EXPECT_NE(error_message([&] { beams.reorder(std::array<std::int64_t, 4>{0, 0, 2, 4}); }).find("sequence 4; sequences lie in [0,4)"), std::string::npos);
  EXPECT_NE(error_message([&] { decoder.forward(x, y, beams); }).find("the cache has 4 sequences"), std::string::npos);
}

}  // namespace
}  // namespace polyhead::nn
