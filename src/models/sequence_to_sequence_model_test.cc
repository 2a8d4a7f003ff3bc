// Tests models with an encoder, a decoder and random parameters. tests/python/test_two_sided_models.py compares whole checkpoints with transformers.
#include "polyhead/models/sequence_to_sequence_model.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "support/compare.h"
#include "support/random.h"

namespace polyhead::models {
namespace {

using test::error_message;
using test::Random;
using test::same_bits;
using testing::HasSubstr;

constexpr std::int64_t kSources = 7, kTargets = 9, kWords = 13;

// A config like T5's: relative position biases, RMS norms, gated feed-forward networks, linear layers without bias, scores without a scale.
SequenceToSequenceConfig t5(DType dtype) {
  SequenceToSequenceConfig config{.family = "t5", .vocabulary = kWords, .encoder_layers = 1, .decoder_layers = 2, .attention_scale = 1, .buckets = 4, .max_distance = 6, .output_scale = 0.5, .tied_output = false};
  config.encoder = {.width = 12, .heads = 2, .head_width = 5, .hidden_width = 20, .activation = nn::Activation::gelu_tanh, .gated = true, .bias = false, .output_bias = false, .feed_forward_bias = false,
                    .norm = nn::NormKind::rms_norm, .norm_position = nn::NormPosition::pre, .dtype = dtype, .seed = 1};
  config.decoder = {.width = 12, .heads = 2, .head_width = 5, .hidden_width = 20, .activation = nn::Activation::gelu_tanh, .gated = true, .bias = false, .output_bias = false, .feed_forward_bias = false,
                    .norm = nn::NormKind::rms_norm, .norm_position = nn::NormPosition::pre, .dtype = dtype, .seed = 0};
  return config;
}

// A config like BART's: learned positions, a norm of the embeddings, norms after attention and feed-forward network. Like some Marian models, it has two
// vocabularies.
SequenceToSequenceConfig bart(DType dtype) {
  SequenceToSequenceConfig config{.family = "bart", .vocabulary = 8, .target_vocabulary = kWords, .source_positions = 10, .target_positions = 12, .position_offset = 2, .encoder_layers = 1,
                                  .decoder_layers = 2, .embedding_scale = 3.5, .embedding_norm = true, .shared_embedding = false};
  config.encoder = {.width = 12, .heads = 3, .hidden_width = 20, .dtype = dtype, .seed = 2};
  config.decoder = {.width = 12, .heads = 2, .hidden_width = 16, .dtype = dtype, .seed = 0};
  return config;
}

SequenceToSequenceModel model_of(const SequenceToSequenceConfig& config) {
  SequenceToSequenceModel model(config);
  model.output_bias = Tensor(config.encoder.dtype, {kWords});
  Random random(5);
  model.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, -0.6, 0.8); });
  return model;
}

Tensor ids_of(std::int64_t sequences, std::int64_t tokens, std::int64_t vocabulary) {
  Tensor ids(DType::i64, {sequences, tokens});
  for (std::int64_t i = 0; i < ids.numel(); ++i) ids.data<std::int64_t>()[i] = (7 * i + i * i % 5) % vocabulary;
  return ids;
}

struct Pass {
  Tensor source, target, attend, memory, logits;

  explicit Pass(const SequenceToSequenceModel& model)
      : source(ids_of(2, kSources, model.config.vocabulary)),
        target(ids_of(2, kTargets, kWords)),
        attend(DType::boolean, {2, kSources}),
        memory(model.config.encoder.dtype, {2, kSources, 12}),
        logits(memory.dtype(), {2, kTargets, kWords}) {
    for (std::int64_t i = 0; i < attend.numel(); ++i) attend.data<bool>()[i] = i < kSources + 4;  // the second source has 4 tokens
    model.encode({.ids = source, .attend_keys = attend}, {.memory = memory});
    model.decode({.ids = target, .memory = memory, .attend_memory = attend}, {.logits = logits});
  }
};

TEST(SequenceToSequenceModel, ACacheHasTheBitsOfTheWholeText) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const SequenceToSequenceConfig& config : {t5(dtype), bart(dtype)}) {
      SCOPED_TRACE(config.family + " " + std::string(info(dtype).name));
      const SequenceToSequenceModel model = model_of(config);
      const Pass whole(model);
      nn::DecoderCache cache = model.cache(whole.memory, kTargets, whole.attend);
      Tensor parts(dtype, whole.logits.shape()), next(dtype, {2, kWords});
      for (std::int64_t begin = 0, end = 4; begin < kTargets; begin = end, end = std::min(end + 1 + begin % 3, kTargets)) {
        const auto own = parts.view().slice(1, begin, end);
        model.decode({.ids = whole.target.view().slice(1, begin, end)}, {.logits = own, .next_logits = next}, {.cache = &cache});
        EXPECT_TRUE(same_bits(next, own.select(1, end - begin - 1)));
      }
      EXPECT_TRUE(same_bits(parts, whole.logits));
      // The encoder's output for a source has the same bits in a batch with padding and alone without padding.
      Tensor alone(dtype, {1, 4, 12});
      model.encode({.ids = whole.source.view().slice(0, 1, 2).slice(1, 0, 4)}, {.memory = alone});
      EXPECT_TRUE(same_bits(alone, whole.memory.view().slice(0, 1, 2).slice(1, 0, 4)));
    }
  }
}

TEST(SequenceToSequenceModel, OutputsDoNotChangeEachOther) {
  for (const SequenceToSequenceConfig& config : {t5(DType::f32), bart(DType::f32)}) {
    const SequenceToSequenceModel model = model_of(config);
    const Pass whole(model);
    const std::int64_t heads = model.config.encoder.heads;
    Tensor memory(DType::f32, {2, kSources, 12}), encoder_hidden(DType::f32, {2, 2, kSources, 12}), encoder_maps(DType::f32, {1, 2, heads, kSources, kSources});
    model.encode({.ids = whole.source, .attend_keys = whole.attend}, {.memory = memory, .all_hidden = encoder_hidden, .attentions = encoder_maps});
    EXPECT_TRUE(same_bits(memory, whole.memory));
    EXPECT_TRUE(same_bits(memory, encoder_hidden.view().select(0, 1)));
    Tensor logits(DType::f32, whole.logits.shape()), hidden(DType::f32, {2, kTargets, 12}), all_hidden(DType::f32, {3, 2, kTargets, 12});
    Tensor maps(DType::f32, {2, 2, 2, kTargets, kTargets}), cross_maps(DType::f64, {2, 2, 2, kTargets, kSources});
    model.decode({.ids = whole.target, .memory = memory, .attend_memory = whole.attend}, {.logits = logits, .hidden = hidden, .all_hidden = all_hidden, .attentions = maps, .cross_attentions = cross_maps});
    EXPECT_TRUE(same_bits(logits, whole.logits));
    EXPECT_TRUE(same_bits(hidden, all_hidden.view().select(0, 2)));
    double largest = 0;  // the largest cross-attention weight of the second text on padding
    for (std::int64_t i = 0; i < cross_maps.numel(); ++i)
      if (i / kSources / kTargets / 2 % 2 == 1 && i % kSources >= 4) largest = std::max(largest, cross_maps.data<double>()[i]);
    EXPECT_EQ(largest, 0);
  }
}

TEST(SequenceToSequenceModel, MessagesSayWhatDoesNotFit) {
  const SequenceToSequenceModel model = model_of(bart(DType::f32));
  const Pass whole(model);
  nn::DecoderCache cache = model.cache(whole.memory, kTargets, whole.attend);
  Tensor logits(DType::f32, {2, kTargets, kWords}), next(DType::f32, {2, kWords});
  const auto decode = [&](const TargetInput& input, const TargetOutput& output, nn::DecoderCache* in) { return error_message([&] { model.decode(input, output, {.cache = in}); }); };
  EXPECT_THAT(decode({.ids = whole.target}, {.logits = logits}, nullptr), HasSubstr("memory is missing"));
  EXPECT_THAT(decode({.ids = whole.target, .memory = whole.memory}, {.logits = logits}, &cache), HasSubstr("a memory is given; the cache has one"));
  EXPECT_THAT(decode({.ids = whole.target, .attend_keys = whole.attend}, {.logits = logits}, &cache), HasSubstr("attend_keys cannot be combined with a cache"));
  EXPECT_THAT(decode({.ids = whole.target}, {.attentions = logits}, &cache), HasSubstr("attentions and cross_attentions cannot be combined with a cache"));
  const Tensor one = ids_of(1, 3, kWords), many = ids_of(2, 13, kWords);
  EXPECT_THAT(decode({.ids = one}, {.next_logits = next}, &cache), HasSubstr("ids is [1,3]; the cache has 2 sequences, so it must be [2,T]"));
  EXPECT_THAT(decode({.ids = many, .memory = whole.memory}, {.next_logits = next}, nullptr), HasSubstr("the text has 13 tokens; the model has positions for 12"));
  EXPECT_THAT(decode({.ids = whole.target, .memory = whole.memory}, {.logits = next}, nullptr), HasSubstr("logits is [2,13]; it must be [2,9,13]"));
  EXPECT_EQ(cache.length(0), 0);
  EXPECT_THAT(error_message([&] { model.encode({.ids = whole.source}, {.memory = logits}); }), HasSubstr("memory is [2,9,13]; it must be [2,7,12]"));
  EXPECT_THAT(error_message([&] { model.generate(std::vector<std::int64_t>{1, 2}, {.max_tokens = 3}); }), HasSubstr("give a prompt"));
}

}  // namespace
}  // namespace polyhead::models
