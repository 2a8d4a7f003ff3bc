#include "polyhead/nn/encoder_decoder.h"

#include <cmath>
#include <map>

#include "polyhead/nn/beam_search.h"
#include "polyhead/nn/dropout.h"
#include "polyhead/nn/positions.h"
#include "polyhead/nn/sampling.h"
#include "polyhead/nn/stack_cache.h"
#include "support/any_tensor.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::near;
using test::Random;
using test::same_bits;

constexpr std::int64_t kCount = 4;

EncoderDecoder tiny(bool tied, std::uint64_t seed, double dropout = 0) {
  EncoderDecoder model({.source_count = tied ? kCount : 6, .target_count = kCount, .layers = 1, .decoder_layers = 2,
                        .layer = {.width = 4, .heads = 2, .hidden_width = 5, .norm_position = tied ? NormPosition::pre : NormPosition::post, .epsilon = 1e-3, .dropout = dropout,
                                  .attention_dropout = dropout, .dtype = DType::f64, .seed = seed}, .shared_embedding = tied, .tied_output = tied});
  Random random(seed);
  model.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, -0.8, 1); });
  return model;
}

struct Texts {
  Tensor source = Tensor::of<std::int64_t>({2, 3}, {1, 0, 3, 2, 2, 0}), lengths = Tensor::of<std::int64_t>({2}, {3, 2});
  Tensor target = Tensor::of<std::int64_t>({2, 3}, {0, 3, 3, 1, 0, 2});
  Mask mask() const { return {.key_lengths = lengths}; }
};

TEST(EncoderDecoder, GradientsAreCentralDifferencesAndSumOverTiedUses) {
  const Texts texts;
  for (const bool tied : {false, true}) {
    const double dropout = tied ? 0.3 : 0;
    SCOPED_TRACE(tied ? "tied, with dropout" : "not tied");
    EncoderDecoder model = tiny(tied, 1, dropout);
    const EncoderDecoderOptions options{.source_mask = texts.mask(), .mode = Mode::training, .dropout_seed = 7};
    Tensor logits(DType::f64, {2, 3, kCount});
    Random random(2);
    const Tensor d_logits = random.tensor(DType::f64, logits.shape());
    EncoderDecoder grads = zeros_like(model);
    grads.visit([](const std::string&, Tensor& tensor) { fill(tensor, 9); });  // backward() must replace these values
    EncoderDecoder::Saved saved;
    model.forward(texts.source, texts.target, logits, options, &saved);
    model.backward(saved, d_logits, {.parameters = &grads});
    const auto leaves = test::parameter_leaves(model, grads);
    EXPECT_EQ(leaves.size(), 1 + 16 + 2 * 26 + (tied ? 4u : 3u));
    test::expect_gradients(
        [&] {
          model.forward(texts.source, texts.target, logits, options);
          return test::weighted_sum(logits, d_logits);
        },
        leaves);
  }
}

// The model must compute the same as its parts: the public layers, called one after the other.
TEST(EncoderDecoder, EqualsItsLayersCalledOneByOne) {
  const Texts texts;
  const EncoderDecoder model = tiny(false, 3);
  const auto embedded = [&](const Embedding& embedding, const Tensor& ids) {
    Tensor x(DType::f64, {2, 3, 4}), positions(DType::f64, {3, 4});
    embedding.forward(ids, x);
    sinusoidal_positions(positions);
    for (std::int64_t i = 0; i < x.numel(); ++i) x.data<double>()[i] = 2 * x.data<double>()[i] + positions.data<double>()[i % 12];
    return x;
  };
  const Tensor source = embedded(model.source_embedding, texts.source), target = embedded(model.target_embedding, texts.target);
  Tensor memory(DType::f64, {2, 3, 4}), decoded(DType::f64, {2, 3, 4}), expected(DType::f64, {2, 3, kCount}), logits = expected, encoded = memory;
  model.encoder.forward(source, memory, {.mask = texts.mask()});
  model.decoder.forward(target, memory, decoded, {.memory_mask = texts.mask()});
  model.output.forward(decoded, expected);
  EncoderDecoder::Saved saved;
  model.forward(texts.source, texts.target, logits, {.source_mask = texts.mask()}, &saved);
  EXPECT_TRUE(near(logits, expected, 1e-13));
  model.encode(texts.source, encoded, {.source_mask = texts.mask()});
  EXPECT_TRUE(near(encoded, memory, 1e-13));
  // The cross-attention weights of a row must sum to 1, and those of padding tokens of the source must be 0.
  Tensor map(DType::f64, {2, 2, 3, 3});
  for (const DecoderLayer::Saved& layer : saved.decoder.layers) {
    attention_map(layer.cross_attention.maps(), map, layer.cross_attention.sdpa);
    for (std::int64_t row = 0; row < 12; ++row) {
      const double* const p = map.data<double>() + 3 * row;
      EXPECT_NEAR(p[0] + p[1] + p[2], 1, 1e-12);
      EXPECT_EQ(p[2] == 0, row >= 6);
    }
  }
}

TEST(EncoderDecoder, NewParametersDifferAndEmbeddingsAreSmall) {
  const EncoderDecoderConfig config{.source_count = 500, .layers = 2, .layer = {.width = 64, .heads = 4, .seed = 5}, .shared_embedding = true, .tied_output = true};
  const EncoderDecoder model(config);
  double squares = 0;
  for (const double x : test::to_doubles(model.source_embedding.weight)) squares += x * x;
  EXPECT_NEAR(squares / 500, 1, 0.05);  // the squares of an embedding sum to about 1, because it has 64 elements with the standard deviation 1/8
  std::map<std::vector<double>, std::string> seen;
  model.visit([&](const std::string& name, const Tensor& tensor) {
    if (tensor.shape().size() < 2) return;
    const auto [at, is_new] = seen.emplace(test::to_doubles(tensor), name);
    EXPECT_TRUE(is_new) << name << " is " << at->second;
  });
}

TEST(EncoderDecoder, IsPreNormByDefault) {
  const EncoderDecoder pre({.source_count = 5, .layer = {.width = 4, .seed = 1}}), post({.source_count = 5, .layer = {.width = 4, .norm_position = NormPosition::post, .seed = 1}});
  EXPECT_EQ(pre.encoder.layers[0].norm_position, NormPosition::pre);
  EXPECT_EQ(pre.decoder.layers[0].norm_position, NormPosition::pre);
  EXPECT_TRUE(pre.encoder.final_norm.weight && pre.decoder.final_norm.weight);
  EXPECT_EQ(post.decoder.layers[0].norm_position, NormPosition::post);
  EXPECT_EQ(EncoderLayer({.width = 4, .seed = 1}).norm_position, NormPosition::post);
  EXPECT_EQ(DecoderLayer({.width = 4, .seed = 1}).norm_position, NormPosition::post);
}

// Decodes two tokens of a target with a cache, and then its third token. After cache.clear(), decodes token by token with greedy_tokens().
TEST(EncoderDecoder, DecodingWithACacheEqualsTheWholeText) {
  const Texts texts;
  for (const bool tied : {false, true}) {
    const EncoderDecoder model = tiny(tied, 4);
    Tensor whole(DType::f64, {2, 3, kCount}), memory(DType::f64, {2, 3, 4});
    model.forward(texts.source, texts.target, whole, {.source_mask = texts.mask()});
    model.encode(texts.source, memory, {.source_mask = texts.mask()});
    DecoderCache cache(model.decoder, memory, {.capacity = 5, .memory_mask = texts.mask()});
    Tensor parts(DType::f64, whole.shape());
    for (const auto& [begin, end] : {std::pair{0, 2}, std::pair{2, 3}})
      model.decode(texts.target.view().slice(1, begin, end), parts.view().slice(1, begin, end), cache);
    EXPECT_TRUE(near(parts, whole, 1e-12));

    cache.clear();
    Tensor text(DType::i64, {2, 6}), logits(DType::f64, {2, 1, kCount}), all(DType::f64, {2, 5, kCount}), tokens(DType::i64, {2});
    for (std::int64_t t = 0; t < 5; ++t) {
      model.decode(text.view().slice(1, t, t + 1), logits, cache);
      greedy_tokens(logits.view().select(1, 0), text.view().select(1, t + 1));
    }
    model.forward(texts.source, text.view().slice(1, 0, 5), all, {.source_mask = texts.mask()});
    for (std::int64_t t = 0; t < 5; ++t) {
      greedy_tokens(all.view().select(1, t), tokens);
      EXPECT_TRUE(same_bits(tokens, text.view().select(1, t + 1))) << t;
    }
  }
}

// With as many beams as there can be open texts, beam search must find the best of all texts. The expected scores come from forward passes over whole texts.
TEST(EncoderDecoder, BeamSearchFindsTheBestText) {
  const Texts texts;
  constexpr std::int64_t kBeams = kCount * kCount, kStart = 1, kLength = 3;
  const EncoderDecoder model = tiny(true, 6);
  Tensor memory(DType::f64, {2, 3, 4}), logits(DType::f64, {2 * kBeams, 1, kCount});
  model.encode(texts.source, memory, {.source_mask = texts.mask()});
  DecoderCache cache(model.decoder, memory, {.beams = kBeams, .capacity = kLength, .memory_mask = texts.mask()});
  const auto found = beam_search(std::vector<std::int64_t>(2, kStart),
                                 [&](std::span<const std::int64_t> tokens, std::span<const std::int64_t> parents) -> ConstTensorView {
                                   cache.reorder(parents);
                                   model.decode({tokens.data(), {2 * kBeams, 1}}, logits, cache);
                                   return logits.view().select(1, 0);
                                 },
                                 {.beams = kBeams, .max_tokens = kLength});
  for (std::int64_t b = 0; b < 2; ++b) {
    std::pair<double, std::vector<std::int64_t>> best{-1e9, {}};
    for (std::int64_t number = 0; number < kCount * kCount * kCount; ++number) {
      const std::vector<std::int64_t> text{number / 16, number / 4 % 4, number % 4};
      const Tensor target = Tensor::of<std::int64_t>({1, kLength}, {kStart, text[0], text[1]});
      Tensor scores(DType::f64, {1, kLength, kCount});
      model.forward(texts.source.view().slice(0, b, b + 1), target, scores, {.source_mask = {.key_lengths = texts.lengths.view().slice(0, b, b + 1)}});
      double sum = 0;
      for (std::int64_t t = 0; t < kLength; ++t) {
        const double* const row = scores.data<double>() + t * kCount;
        double total = 0;
        for (std::int64_t c = 0; c < kCount; ++c) total += std::exp(row[c]);
        sum += row[text[static_cast<std::size_t>(t)]] - std::log(total);
      }
      best = std::max(best, {sum, text});
    }
    const Hypothesis& first = found[static_cast<std::size_t>(b)].at(0);
    EXPECT_EQ(first.tokens, best.second);
    EXPECT_NEAR(first.log_probability, best.first, 1e-12);
  }
}

TEST(EncoderDecoder, StepsReuseTheirMemory) {
  const EncoderDecoder model({.source_count = kCount, .layer = {.width = 128, .heads = 2, .seed = 8}, .shared_embedding = true, .tied_output = true});
  EncoderDecoder grads = zeros_like(model);
  const Workspace workspace;
  const Tensor ids(DType::i64, {2, 30});
  Tensor logits(DType::f32, {2, 30, kCount});
  EncoderDecoder::Saved saved;
  const auto step = [&] {
    model.forward(ids, ids, logits, {.workspace = &workspace}, &saved);
    model.backward(saved, logits, {.parameters = &grads}, {.workspace = &workspace});
    return workspace.idle_bytes();
  };
  const std::int64_t idle = step();
  EXPECT_GT(idle, 0);
  EXPECT_EQ(step(), idle);
}

TEST(EncoderDecoder, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  EXPECT_EQ(error_message([] { EncoderDecoder({.layer = {.width = 4, .seed = 1}}); }),
            "EncoderDecoder: source_count is 0, target_count 0 and width 4; each must be at least 1");
  EXPECT_EQ(error_message([] { EncoderDecoder({.source_count = 5, .target_count = 6, .layer = {.width = 4, .seed = 1}, .shared_embedding = true}); }),
            "EncoderDecoder: source_count is 5 and target_count 6; with shared_embedding both must be equal");
  EXPECT_EQ(error_message([] { EncoderDecoder({.source_count = 5, .layer = {.width = 4, .memory_width = 6, .seed = 1}}); }),
            "EncoderLayer: memory_width is 6; an encoder layer reads no memory, so it must be 0");
  const Texts texts;
  const EncoderDecoder model = tiny(false, 9);
  Tensor logits(DType::f64, {2, 3, kCount}), short_logits(DType::f64, {2, 3, 3});
  EncoderDecoder grads = zeros_like(model);
  EncoderDecoder::Saved saved;
  EXPECT_EQ(error_message([&] { model.backward(saved, logits, {.parameters = &grads}); }),
            "EncoderDecoder.backward: saved is empty; give it to forward first");
  EXPECT_EQ(error_message([&] { model.forward(texts.source, texts.target, short_logits); }), "EncoderDecoder.forward: logits is [2,3,3]; it must be [2,3,4]");
  EXPECT_EQ(error_message([&] { model.forward(texts.source, texts.target.view().slice(0, 0, 1), logits); }),
            "EncoderDecoder.forward: source is [2,3] and target [1,3]; both must have the same number of sequences");
  EXPECT_EQ(error_message([&] { model.forward(texts.lengths, texts.target, logits); }), "EncoderDecoder.forward: source is [2]; it must be ids [sequences,tokens]");
  EncoderDecoder dropped = tiny(false, 9, 0.1);
  EXPECT_NE(error_message([&] { dropped.forward(texts.source, texts.target, logits, {.mode = Mode::training}); }).find("needs dropout_seed"), std::string::npos);
  DecoderCache cache(model.decoder, during_call(Tensor(DType::f64, {3, 2, 4})), {.capacity = 2});
  EXPECT_EQ(error_message([&] { model.decode(texts.target, logits, cache); }), "EncoderDecoder.decode: target is [2,3]; the cache has 3 sequences");
  model.forward(texts.source, texts.target, logits, {}, &saved);
  EXPECT_EQ(error_message([&] { model.backward(saved, logits, {}); }), "EncoderDecoder.backward: gradients.parameters is missing");
}

}  // namespace
}  // namespace polyhead::nn
