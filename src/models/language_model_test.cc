// Tests language models with random parameters. tests/python/test_language_models.py compares whole checkpoints with transformers.
#include "polyhead/models/language_model.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

#include "models/test_error_matcher.h"
#include "models/test_model_folder.h"
#include "support/compare.h"
#include "support/random.h"

namespace polyhead::models {
namespace {

using nlohmann::json;
using test::error_message;
using test::Random;
using test::same_bits;
using testing::HasSubstr;

constexpr std::int64_t kTokens = 11, kVocabulary = 17;

LanguageModelConfig gpt2(DType dtype = DType::f32) {
  return {.family = "gpt2",
          .vocabulary = kVocabulary,
          .positions = 16,
          .layers = 2,
          .layer = {.width = 12, .heads = 3, .hidden_width = 20, .norm_position = nn::NormPosition::pre, .dtype = dtype, .seed = 1},
          .tied_output = true};
}

// A decoder like Gemma's: sliding windows with separate rotary frequencies, softcaps, norms of q and k, norms before and after attention and feed-forward
// network, and grouped-query attention.
LanguageModelConfig gemma(DType dtype = DType::f32) {
  return {.family = "gemma3_text",
          .vocabulary = kVocabulary,
          .positions = 64,
          .layers = 3,
          .layer = {.width = 12, .heads = 4, .kv_heads = 2, .head_width = 6, .hidden_width = 20, .activation = nn::Activation::gelu_tanh, .gated = true, .bias = false, .output_bias = false,
                    .feed_forward_bias = false, .qk_norm = true, .norm = nn::NormKind::rms_norm, .norm_position = nn::NormPosition::both, .dtype = dtype, .seed = 2},
          .norm_weight_offset = 1,
          .embedding_scale = 3.5,
          .attention_scale = 0.3,
          .attention_softcap = 4,
          .logit_softcap = 2,
          .windows = {3, 0, 4},
          .rotary = RotaryRule{.embedding = {.width = 6, .base = 1000}},
          .local_rotary = RotaryRule{.embedding = {.width = 6, .base = 50}}};
}

LanguageModelConfig neox(DType dtype = DType::f32) {
  LanguageModelConfig config = gpt2(dtype);
  config.layer.part_order = nn::PartOrder::parallel;
  config.rotary = RotaryRule{.embedding = {.width = 2}};
  config.tied_output = false;
  config.scale_by_layer = true;
  return config;
}

// Two of three layers have experts with clamped gates and a shared expert; all layers have sinks.
LanguageModelConfig mixture(DType dtype = DType::f32) {
  LanguageModelConfig config = gpt2(dtype);
  config.layers = 3;
  config.layer.activation = nn::Activation::silu, config.layer.gated = true;
  config.experts = ExpertsConfig{.count = 4, .chosen = 2, .hidden_width = 8, .shared_hidden_width = 6, .bias = true, .clamped_gate = nn::ClampedGate{.limit = 0.5}, .layers = {true, false, true}};
  config.sink = true;
  config.windows = {0, 3, 0};
  config.rotary = RotaryRule{.embedding = {.width = 4}};
  return config;
}

LanguageModel model_of(const LanguageModelConfig& config) {
  LanguageModel model(config);
  Random random(5);
  model.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, -0.6, 0.8); });
  return model;
}

Tensor ids_of(std::int64_t sequences, std::int64_t tokens = kTokens) {
  Tensor ids(DType::i64, {sequences, tokens});
  for (std::int64_t i = 0; i < ids.numel(); ++i) ids.data<std::int64_t>()[i] = (7 * i + i * i % 5) % kVocabulary;
  return ids;
}

Tensor logits_of(const LanguageModel& model, const Tensor& ids) {
  Tensor logits(model.config.layer.dtype, {ids.extent(0), ids.extent(1), kVocabulary});
  model.forward({.ids = ids}, {.logits = logits});
  return logits;
}

TEST(LanguageModel, ACacheHasTheBitsOfTheWholeText) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const LanguageModelConfig& config : {gpt2(dtype), gemma(dtype), neox(dtype), mixture(dtype)}) {
      SCOPED_TRACE(config.family + " " + std::string(info(dtype).name));
      const LanguageModel model = model_of(config);
      const Tensor ids = ids_of(2), whole = logits_of(model, ids);
      nn::EncoderCache cache = model.cache({.sequences = 2, .capacity = kTokens});
      Tensor parts(dtype, whole.shape()), next(dtype, {2, kVocabulary});
      for (std::int64_t begin = 0, end = 5; begin < kTokens; begin = end, end = std::min(end + 1 + begin % 3, kTokens)) {
        const auto own = parts.view().slice(1, begin, end);
        model.forward({.ids = ids.view().slice(1, begin, end)}, {.logits = own, .next_logits = next}, {.cache = &cache});
        EXPECT_TRUE(same_bits(next, own.select(1, end - begin - 1)));
      }
      EXPECT_EQ(cache.length(1), kTokens);
      EXPECT_TRUE(same_bits(parts, whole));
    }
  }
}

TEST(LanguageModel, PromptsOfACacheMayHaveDifferentLengths) {
  for (const LanguageModelConfig& config : {gpt2(), gemma(), neox(), mixture()}) {
    const LanguageModel model = model_of(config);
    const Tensor ids = ids_of(2), whole = logits_of(model, ids), counts = Tensor::of<std::int64_t>({2}, {9, 4});
    nn::EncoderCache cache = model.cache({.sequences = 2, .capacity = 16});
    Tensor next(DType::f32, {2, kVocabulary}), one(DType::i64, {2, 1});
    model.forward({.ids = ids.view().slice(1, 0, 9), .new_tokens = counts}, {.next_logits = next}, {.cache = &cache});
    for (int step = 0; step < 2; ++step) {
      for (std::int64_t b = 0; b < 2; ++b) {
        EXPECT_TRUE(same_bits(next.view().select(0, b), whole.view().select(0, b).select(0, cache.length(b) - 1))) << b;
        copy(ids.view().select(0, b).slice(0, cache.length(b), cache.length(b) + 1), one.view().select(0, b));
      }
      model.forward({.ids = one}, {.next_logits = next}, {.cache = &cache});
    }
  }
}

TEST(LanguageModel, PooledMapsAreBlocksOfTheMaps) {
  for (const LanguageModelConfig& config : {gemma(), mixture()}) {
    const LanguageModel model = model_of(config);
    const Tensor ids = ids_of(2);
    const std::int64_t layers = config.layers, heads = config.layer.heads;
    Tensor maps(DType::f32, {layers, 2, heads, kTokens, kTokens}), pooled(DType::f32, {layers, 2, heads, 3, 2}), logits(DType::f32, {2, kTokens, kVocabulary});
    model.forward({.ids = ids}, {.attentions = maps});
    model.forward({.ids = ids}, {.logits = logits, .pooled = pooled});
    EXPECT_TRUE(same_bits(logits, logits_of(model, ids)));
    const ConstTensorView rows = maps.view().reshape({layers * 2 * heads, kTokens, kTokens}), blocks = pooled.view().reshape({layers * 2 * heads, 3, 2});
    for (std::int64_t map = 0; map < rows.extent(0); ++map) {
      for (std::int64_t i = 0; i < 3; ++i) {
        for (std::int64_t j = 0; j < 2; ++j) {
          const Tensor block = Tensor::copy_of(rows.select(0, map).slice(0, i * kTokens / 3, (i + 1) * kTokens / 3).slice(1, j * kTokens / 2, (j + 1) * kTokens / 2));
          EXPECT_FLOAT_EQ(blocks.select(0, map).select(0, i).select(0, j).data<float>()[0], *std::max_element(block.data<float>(), block.data<float>() + block.numel()));
        }
      }
    }
    nn::EncoderCache cache = model.cache({.sequences = 2, .capacity = kTokens});
    EXPECT_THAT(error_message([&] { model.forward({.ids = ids}, {.pooled = pooled}, {.cache = &cache}); }), HasSubstr("pooled, q, k and v cannot be combined with a cache"));
    Tensor wrong(DType::f32, {layers, 2, heads + 1, 3, 2});
    EXPECT_THAT(error_message([&] { model.forward({.ids = ids}, {.pooled = wrong}); }), HasSubstr("pooled is "));
  }
}

TEST(LanguageModel, OutputsDoNotChangeEachOther) {
  const LanguageModel model = model_of(gemma());
  const Tensor ids = ids_of(2), whole = logits_of(model, ids);
  const LanguageModelConfig& c = model.config;
  Tensor logits(DType::f32, whole.shape()), next(DType::f64, {2, kVocabulary}), hidden(DType::f32, {2, kTokens, 12}), all_hidden(DType::f32, {4, 2, kTokens, 12});
  Tensor attentions(DType::f32, {3, 2, 4, kTokens, kTokens}), q(DType::f32, {3, 2, 4, kTokens, 6}), k(DType::f32, {3, 2, 2, kTokens, 6}), v = k;
  model.forward({.ids = ids}, {.logits = logits, .next_logits = next, .hidden = hidden, .all_hidden = all_hidden, .attentions = attentions, .q = q, .k = k, .v = v});
  EXPECT_TRUE(same_bits(logits, whole));
  EXPECT_TRUE(same_bits(hidden, all_hidden.view().select(0, 3)));
  EXPECT_TRUE(test::near(next, logits.view().select(1, kTokens - 1), 0));
  // Each layer's attention weights are the softmax of its own q and k, within its window.
  for (std::int64_t layer = 0; layer < 3; ++layer) {
    Tensor p(DType::f32, {2, 4, kTokens, kTokens});
    SdpaOptions options{.scale = 0.3F, .mask = {.causal = Causal::top_left()}, .softcap = 4};
    if (const std::int64_t window = c.windows[static_cast<std::size_t>(layer)]; window > 0) options.mask.window.left = window - 1;
    attention_map({.q = q.view().select(0, layer), .k = k.view().select(0, layer)}, p, options);
    EXPECT_TRUE(same_bits(p, attentions.view().select(0, layer))) << layer;
  }
}

TEST(LanguageModel, LayersWithAWindowMayHaveSeparateRotaryAngles) {
  const LanguageModel both = model_of(gemma());
  LanguageModel local = model_of(gemma()), global = model_of(gemma());
  local.config.rotary = local.config.local_rotary, global.config.local_rotary.reset();
  const Tensor ids = ids_of(1);
  const auto q_of = [&](const LanguageModel& model, std::int64_t layer) {
    Tensor q(DType::f32, {3, 1, 4, kTokens, 6});
    model.forward({.ids = ids}, {.q = q});
    return Tensor::copy_of(q.view().select(0, layer));
  };
  EXPECT_TRUE(same_bits(q_of(both, 0), q_of(local, 0)));
  EXPECT_FALSE(same_bits(q_of(both, 0), q_of(global, 0)));
  EXPECT_FALSE(same_bits(q_of(both, 1), q_of(local, 1)));
}

// With GPT-2's scale_attn_by_inverse_layer_idx, layer i divides its scores by i + 1. The attention weights are computed from q and k for comparison.
TEST(LanguageModel, ScoresMayBeDividedByTheNumberOfTheLayer) {
  const LanguageModel model = model_of(neox());
  const Tensor ids = ids_of(1);
  Tensor q(DType::f32, {2, 1, 3, kTokens, 4}), k = q, p(DType::f32, {2, 1, 3, kTokens, kTokens}), expected(DType::f32, {1, 3, kTokens, kTokens});
  model.forward({.ids = ids}, {.attentions = p, .q = q, .k = k});
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    attention_map({.q = q.view().select(0, layer), .k = k.view().select(0, layer)}, expected,
                  {.scale = 0.5 / static_cast<double>(layer + 1), .mask = {.causal = Causal::top_left()}});
    EXPECT_TRUE(test::near(p.view().select(0, layer), expected, 1e-6)) << layer;
  }
}

TEST(LanguageModel, GreedyAnswersAreTheLikeliestTokensOfTheWholeText) {
  for (const LanguageModelConfig& config : {gpt2(), gemma(), neox(), mixture()}) {
    const LanguageModel model = model_of(config);
    const std::vector<std::int64_t> prompt{3, 1, 4, 1, 5};
    const std::vector<std::int64_t> answer = model.generate(prompt, {.max_tokens = 8});
    std::vector<std::int64_t> text = prompt;
    for (const std::int64_t id : answer) {
      const Tensor logits = logits_of(model, Tensor::of<std::int64_t>({1, std::ssize(text)}, text));
      const float* last = logits.data<float>() + (std::ssize(text) - 1) * kVocabulary;
      EXPECT_EQ(id, std::max_element(last, last + kVocabulary) - last);
      text.push_back(id);
    }
    EXPECT_EQ(answer.size(), 8);
  }
}

// If the text is longer than `limit`, the scaling "dynamic" changes the rotary angles of all tokens with each new token; "longrope" changes them once.
TEST(LanguageModel, AnswersAreRightIfRotaryAnglesDependOnTheLength) {
  LanguageModelConfig dynamic = neox(), longrope = neox();
  dynamic.rotary = RotaryRule{.embedding = {.width = 4}, .limit = 6, .dynamic_factor = 4};
  longrope.rotary = RotaryRule{.embedding = {.width = 4, .scaling = nn::RotaryScaling::longrope, .attention_factor = 1.1, .factors = {1, 2}}, .limit = 6, .long_factors = {3, 9}};
  for (const LanguageModelConfig& config : {dynamic, longrope}) {
    const LanguageModel model = model_of(config);
    const std::vector<std::int64_t> prompt{3, 1, 4, 1, 5};
    std::vector<std::int64_t> text = prompt;
    for (const std::int64_t id : model.generate(prompt, {.max_tokens = 6})) {
      const Tensor logits = logits_of(model, Tensor::of<std::int64_t>({1, std::ssize(text)}, text));
      const float* last = logits.data<float>() + (std::ssize(text) - 1) * kVocabulary;
      EXPECT_EQ(id, std::max_element(last, last + kVocabulary) - last) << text.size();
      text.push_back(id);
    }
    nn::EncoderCache cache = model.cache({.sequences = 1, .capacity = 16});
    const Tensor ids = ids_of(1);
    model.forward({.ids = ids.view().slice(1, 0, 5)}, {}, {.cache = &cache});
    EXPECT_THAT(error_message([&] { model.forward({.ids = ids.view().slice(1, 5, 8)}, {}, {.cache = &cache}); }),
                HasSubstr("sequence 0 of the cache grows from 5 to 8 tokens, and the longest to 8; above 6 tokens"));
    EXPECT_EQ(cache.length(0), 5);
  }
}

TEST(LanguageModel, PaddingIsNotRead) {
  const LanguageModel model = model_of(gemma());
  const Tensor ids = ids_of(2), alone = logits_of(model, Tensor::copy_of(ids.view().slice(1, 0, 6)));
  Tensor attend(DType::boolean, {2, kTokens}), logits(DType::f32, {2, kTokens, kVocabulary});
  fill(attend.view().slice(1, 0, 6), 1);
  model.forward({.ids = ids, .attend_keys = attend}, {.logits = logits});
  EXPECT_TRUE(test::near(logits.view().slice(1, 0, 6), alone, 1e-6));
}

TEST(LanguageModel, ATextMayHaveNoTokenOrOneToken) {
  const LanguageModel model = model_of(neox());
  for (const Shape& shape : {Shape{0}, Shape{2, 0}, Shape{0, 3}, Shape{1}, Shape{2, 1, 1}}) {
    const Tensor ids(DType::i64, shape);
    Shape of_logits = shape;
    of_logits.push_back(kVocabulary);
    Tensor logits(DType::f32, of_logits);
    model.forward({.ids = ids}, {.logits = logits});
  }
}

TEST(LanguageModel, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  const LanguageModel model = model_of(gpt2());
  const Tensor ids = ids_of(2), attend(DType::boolean, {2, kTokens}), count = Tensor::of<std::int64_t>({2}, {1, 0});
  Tensor narrow(DType::f32, {2, kTokens, 3}), next(DType::f32, {2, kVocabulary}), maps(DType::f32, {2, 2, 3, kTokens, kTokens});
  nn::EncoderCache cache = model.cache({.sequences = 2, .capacity = 12}), other = model_of(gemma()).cache({.sequences = 2, .capacity = 12});
  const auto message = [&](const LanguageInput& input, const LanguageOutput& output, const LanguageOptions& options = {}) {
    return error_message([&] { model.forward(input, output, options); });
  };
  EXPECT_EQ(message({}, {}), "LanguageModel.forward: ids are missing");
  EXPECT_EQ(message({.ids = ids}, {.logits = narrow}), "LanguageModel.forward: logits is [2,11,3]; it must be [2,11,17]");
  EXPECT_THAT(message({.ids = ids, .attend_keys = attend}, {.next_logits = next}), HasSubstr("next_logits cannot be combined with attend_keys: a mask does not tell"));
  EXPECT_THAT(message({.ids = ids, .attend_keys = attend}, {}, {.cache = &cache}), HasSubstr("attend_keys cannot be combined with a cache. Put padding at the end"));
  EXPECT_THAT(message({.ids = ids}, {.attentions = maps}, {.cache = &cache}), HasSubstr("attentions, pooled, q, k and v cannot be combined with a cache: a call then computes the new tokens only"));
  EXPECT_THAT(message({.ids = ids, .new_tokens = count}, {}), HasSubstr("new_tokens is given without a cache"));
  EXPECT_THAT(message({.ids = ids, .new_tokens = count}, {.next_logits = next}, {.cache = &cache}), HasSubstr("next_logits needs a new token of each sequence; sequence 1 has none"));
  for (const std::int64_t wrong : {std::int64_t{-1}, kTokens + 1, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
    nn::EncoderCache filled = model.cache({.sequences = 2, .capacity = 16});
    model.forward({.ids = ids.view().slice(1, 0, 2)}, {}, {.cache = &filled});
    const Tensor counts = Tensor::of<std::int64_t>({2}, {1, wrong});
    EXPECT_THAT(message({.ids = ids, .new_tokens = counts}, {}, {.cache = &filled}), HasSubstr("new_tokens of sequence 1 is " + std::to_string(wrong) + "; it must be in [0, 11]"));
    EXPECT_EQ(filled.length(1), 2);
  }
  EXPECT_THAT(message({.ids = ids.view().slice(0, 0, 1)}, {}, {.cache = &cache}), HasSubstr("the cache has 2 sequences, so it must be [2,T]"));
  EXPECT_THAT(message({.ids = ids}, {}, {.cache = &other}), HasSubstr("the cache is of another model"));
  const Tensor wide(DType::i64, {2, 17});
  EXPECT_THAT(message({.ids = wide}, {}), HasSubstr("the text has 17 tokens; the model has positions for 16"));
  model.forward({.ids = ids}, {}, {.cache = &cache});
  EXPECT_THAT(message({.ids = ids}, {}, {.cache = &cache}), HasSubstr("the text has 22 tokens; the model has positions for 16"));
  EXPECT_EQ(cache.length(0), kTokens);
  EXPECT_THAT(error_message([&] { model.generate({}, {.max_tokens = 1}); }), HasSubstr("the prompt is empty"));
  const auto generate = [&](const GenerateOptions& options) { return error_message([&] { model.generate(std::vector<std::int64_t>{1, 2}, options); }); };
  EXPECT_EQ(generate({.max_tokens = 1, .seed = 3}), "LanguageModel.generate: seed is given without a temperature; the likeliest token needs no seed");
  for (const std::int64_t wrong : {kVocabulary, std::int64_t{-3}})
    EXPECT_EQ(generate({.max_tokens = 1, .stop_tokens = {1, wrong}}), "LanguageModel.generate: stop_tokens has " + std::to_string(wrong) + "; tokens are in [0, 17), the vocabulary");
}

json llama_json() {
  return R"({"model_type": "llama", "vocab_size": 7, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1,
             "num_attention_heads": 2, "max_position_embeddings": 8, "tie_word_embeddings": true, "rope_theta": 500.0, "eos_token_id": [3, 5]})"_json;
}

LanguageModelConfig read(const json& config, const LanguageLoadOptions& options = {}) {
  ModelFolder folder;
  folder.write_json("config.json", config);
  return read_language_config(folder.path(), options);
}

json with(const json& changes, json config = llama_json()) {
  config.update(changes);
  return config;
}

TEST(ReadLanguageConfig, ReadsSizesAndDefaults) {
  const LanguageModelConfig config = read(llama_json());
  EXPECT_EQ(config.family, "llama");
  EXPECT_EQ(config.layer.kv_heads, 2);
  EXPECT_EQ(config.layer.head_width, 2);
  EXPECT_EQ(config.layer.epsilon, 1e-6);
  EXPECT_EQ(config.layer.activation, nn::Activation::silu);
  EXPECT_EQ(config.rotary->embedding.base, 500);
  EXPECT_EQ(config.answer.end_tokens, (std::vector<std::int64_t>{3, 5}));
  EXPECT_EQ(config.windows, std::vector<std::int64_t>{0});
  EXPECT_TRUE(config.tied_output && config.layer.gated && !config.layer.bias);
  ModelFolder folder;
  folder.write_json("config.json", llama_json());
  folder.write_json("generation_config.json", R"({"eos_token_id": 6})"_json);
  EXPECT_EQ(read_language_config(folder.path() / "config.json").answer.end_tokens, std::vector<std::int64_t>{6});
}

TEST(ReadLanguageConfig, RulesOfAnswersAreReadOrNamed) {
  const auto read_rules = [](const json& generation) {
    ModelFolder folder;
    folder.write_json("config.json", llama_json());
    folder.write_json("generation_config.json", generation);
    return read_language_config(folder.path()).answer;
  };
  const AnswerRules rules = read_rules(R"({"eos_token_id": 6, "suppress_tokens": [1, 2], "begin_suppress_tokens": [3], "bad_words_ids": [[4], [6], [1, 2]], "forced_eos_token_id": 5, "forced_bos_token_id": [0],
                                           "num_beams": 4, "sequence_bias": [[[1], 2.0]], "stop_strings": "a", "dola_layers": null})"_json);
  EXPECT_EQ(rules.suppressed, (std::vector<std::int64_t>{1, 2, 4}));  // transformers does not suppress an end token
  EXPECT_EQ(rules.suppressed_first, std::vector<std::int64_t>{3});
  EXPECT_EQ(rules.forced_last, 5);
  EXPECT_EQ(rules.forced_first, 0);
  EXPECT_EQ(rules.rules_not_followed, (std::vector<std::string>{"num_beams = 4", "sequence_bias", "stop_strings", "bad_words_ids of several tokens"}));
  EXPECT_ERROR(read_rules(R"({"bad_words_ids": [3]})"_json), format, HasSubstr("generation_config.json: bad_words_ids has the number 3; lists of tokens are needed"));
  EXPECT_ERROR(read_rules(R"({"bad_words_ids": 3})"_json), format, HasSubstr("bad_words_ids is the number 3; a list of lists of tokens is needed"));
  const AnswerRules several = read_rules(R"({"forced_eos_token_id": [1, 2]})"_json);
  EXPECT_EQ(several.forced_last, std::nullopt);
  EXPECT_EQ(several.rules_not_followed, std::vector<std::string>{"forced_eos_token_id of several tokens"});
  EXPECT_ERROR(read_rules(R"({"forced_bos_token_id": [1, 2]})"_json), unsupported, HasSubstr("forced_bos_token_id has 2 tokens; one or none is supported"));
}

TEST(ReadLanguageConfig, AKeyThatNothingReadsIsAnErrorUnlessItIsKnownToDoNothing) {
  read(with(R"({"torch_dtype": "bfloat16", "use_cache": true, "pretraining_tp": 1, "new_idea": null, "pruned_heads": {}, "use_sliding_window": false})"_json));
  EXPECT_ERROR(read(with(R"({"new_idea": 0.5})"_json)), unsupported, HasSubstr("\"new_idea\" is a number that is not a 64-bit integer; models of the type llama are not known to have this key"));
  read(with(R"({"new_idea": 0.5})"_json), {.ignored_keys = {"new_idea"}});
  EXPECT_ERROR(read(with(R"({"pruned_heads": {"1": [0]}})"_json)), unsupported, HasSubstr("pruned_heads is an object; with models of the type llama only {} is supported"));
  EXPECT_ERROR(read(with(R"({"add_cross_attention": true})"_json)), unsupported, HasSubstr("add_cross_attention is true"));
}

TEST(ReadLanguageConfig, MalformedConfigurationsAreErrorsThatNameTheKey) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"}) {
    json missing = llama_json();
    missing.erase(key);
    EXPECT_ERROR(read(missing), format, HasSubstr(std::string("config.json: ") + key + " is missing"));
    EXPECT_ERROR(read(with({{key, "6"}})), format, HasSubstr(std::string(key) + " is \"6\""));
    EXPECT_ERROR(read(with({{key, 0}})), format, HasSubstr(std::string(key) + " is 0; it must be in [1, "));
    EXPECT_ERROR(read(with({{key, std::uint64_t{1} << 40}})), format, HasSubstr(key));
  }
  EXPECT_ERROR(read(with(R"({"num_attention_heads": 3})"_json)), format, HasSubstr("num_attention_heads is 3; it must divide hidden_size = 4"));
  EXPECT_ERROR(read(with({{"head_dim", 1 << 30}})), format, HasSubstr("their product may be at most"));
  EXPECT_ERROR(read(with(R"({"rms_norm_eps": 0})"_json)), format, HasSubstr("rms_norm_eps is 0"));
  EXPECT_ERROR(read(with(R"({"eos_token_id": "end"})"_json)), format, HasSubstr("eos_token_id is \"end\"; token ids are integers"));
  EXPECT_ERROR(read(with(R"({"rope_scaling": 3})"_json)), format, HasSubstr("rope_scaling is the number 3; an object is needed"));
  EXPECT_ERROR(read(with(R"({"rope_scaling": {"type": "linear", "factor": 0.5}})"_json)), format, HasSubstr("rope_scaling.factor is 0.5; it must be in [1, 1073741824]"));
  EXPECT_ERROR(read(with(R"({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}})"_json)), format, HasSubstr("rope_scaling is given beside rope_parameters"));
  EXPECT_ERROR(read(with(R"({"rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1, 2]}})"_json)), format, HasSubstr("numbers; scaling longrope needs width / 2"));
  EXPECT_ERROR(read(with(R"({"rope_scaling": {"type": "longrope", "short_factor": [1]}})"_json)), format, HasSubstr("rope_scaling.long_factor is missing"));
  EXPECT_ERROR(read(with(R"({"partial_rotary_factor": 0.5})"_json)), unsupported, HasSubstr("partial_rotary_factor is 0.5; models of the type llama rotate all features"));
  EXPECT_ERROR(read(with(R"({"model_type": "mistral", "num_key_value_heads": 2})"_json)), format, HasSubstr("sliding_window is missing; null means none"));
  EXPECT_ERROR(read(with(R"({"model_type": "qwen2", "num_key_value_heads": 2, "sliding_window": null, "layer_types": ["full_attention", "full_attention"]})"_json)), format,
               HasSubstr("layer_types has 2 words; it must have one for each of the 1 layers"));
  EXPECT_ERROR(read(with(R"({"model_type": "qwen2", "num_key_value_heads": 2, "sliding_window": null, "layer_types": ["linear_attention"]})"_json)), unsupported,
               HasSubstr("layer_types has \"linear_attention\"; full_attention and sliding_attention are known"));
  EXPECT_ERROR(read(with(R"({"model_type": "qwen2", "num_key_value_heads": 2, "layer_types": ["sliding_attention"]})"_json)), format, HasSubstr("layer 0 has sliding_attention"));
  EXPECT_ERROR(read(with(R"({"model_type": "bert"})"_json)), unsupported, HasSubstr("model_type is 'bert'; known are gpt2, llama, mistral, mixtral, qwen2, qwen3, qwen2_moe, qwen3_moe, gemma, gemma2, gemma3_text, phi3, gpt_neox, gpt_oss"));
}

TEST(ReadLanguageConfig, NumbersOfRotaryPositionsHaveBounds) {
  const json longrope = R"({"type": "longrope", "short_factor": [1], "long_factor": [1]})"_json;
  for (const double original : {1e300, 9.3e18, 0.0, 0.5, -4.0}) {
    for (const json& type : {longrope, R"({"type": "yarn", "factor": 2})"_json, R"({"type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4})"_json}) {
      EXPECT_ERROR(read(with({{"rope_scaling", with({{"original_max_position_embeddings", original}}, type)}})), format,
                   HasSubstr("; it must be in [1, 1073741824]"));
    }
  }
  EXPECT_ERROR(read(with({{"rope_scaling", with(R"({"original_max_position_embeddings": 1})"_json, longrope)}})), format,
               HasSubstr("rope_scaling.original_max_position_embeddings is 1; rope_type 'longrope' needs at least 2"));
  EXPECT_EQ(read(with({{"rope_scaling", with({{"original_max_position_embeddings", 1 << 30}}, longrope)}})).rotary->limit, 1 << 30);
  for (const char* type : {"dynamic", "linear", "yarn", "llama3", "proportional"}) {
    for (const double factor : {-3.0, 0.0, 0.5, 1e300})
      EXPECT_ERROR(read(with({{"rope_scaling", with({{"type", type}, {"factor", factor}}, json::object())}})), format, HasSubstr("rope_scaling.factor is ")) << type;
  }
  EXPECT_EQ(read(with(R"({"num_attention_heads": 1, "rope_scaling": {"type": "dynamic", "factor": 1}})"_json)).rotary->dynamic_factor, 1);
}

// A truncate of null is false in transformers. For kinds of layers with separate positions transformers ignores truncate, a lone `type`, and _sliding_window_pattern.
TEST(ReadLanguageConfig, KeysThatTransformersReadsInAnotherWayAreReadSoOrRefused) {
  const json yarn{{"rope_type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", 4}};
  const auto with_truncate = [&](const json& value) { return with({{"truncate", value}}, yarn); };
  EXPECT_TRUE(read(with({{"rope_parameters", yarn}})).rotary->embedding.truncate);
  EXPECT_TRUE(read(with({{"rope_parameters", with_truncate(true)}})).rotary->embedding.truncate);
  EXPECT_FALSE(read(with({{"rope_parameters", with_truncate(false)}})).rotary->embedding.truncate);
  EXPECT_FALSE(read(with({{"rope_parameters", with_truncate(nullptr)}})).rotary->embedding.truncate);
  const auto gemma = [](const json& changes) { return with(changes, with({{"model_type", "gemma3_text"}, {"num_key_value_heads", 1}, {"head_dim", 4}, {"sliding_window", 4}})); };
  const auto full = [&](const json& rope) { return gemma({{"rope_parameters", json{{"full_attention", rope}}}}); };
  read(full(yarn));
  read(full(with_truncate(true)));
  for (const json& value : {json(false), json(nullptr)}) {
    EXPECT_ERROR(read(full(with_truncate(value))), unsupported, HasSubstr("rope_parameters.full_attention.truncate is false or null; models of the type gemma3_text"));
    EXPECT_ERROR(read(gemma({{"rope_scaling", with_truncate(value)}})), unsupported, HasSubstr("rope_scaling.truncate is false or null"));
  }
  EXPECT_ERROR(read(gemma({{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}})), unsupported, HasSubstr("rope_scaling.type is 'linear' without rope_type; transformers ignores it"));
  EXPECT_EQ(read(gemma({{"rope_scaling", {{"rope_type", "linear"}, {"type", "linear"}, {"factor", 2}}}})).rotary->embedding.factor, 2);
  read(gemma({{"rope_scaling", json{{"type", "default"}}}}));
  EXPECT_ERROR(read(gemma({{"_sliding_window_pattern", 2}})), unsupported, HasSubstr("_sliding_window_pattern is 2 without sliding_window_pattern and layer_types"));
  EXPECT_EQ(read(gemma({{"_sliding_window_pattern", 6}})).windows, std::vector<std::int64_t>{4});
  EXPECT_EQ(read(gemma({{"_sliding_window_pattern", 2}, {"sliding_window_pattern", 1}})).windows, std::vector<std::int64_t>{0});
  EXPECT_EQ(read(gemma({{"_sliding_window_pattern", 2}, {"layer_types", json::array({"full_attention"})}})).windows, std::vector<std::int64_t>{0});
}

TEST(ReadLanguageConfig, AFolderWithAnAdapterIsRefused) {
  const ModelFolder folder;
  folder.write_json("config.json", llama_json());
  folder.write_json("adapter_config.json", {{"peft_type", "LORA"}});
  EXPECT_ERROR(read_language_config(folder.path()), unsupported, HasSubstr("merge it with merge_and_unload()"));
}

std::vector<io::NamedTensor> llama_tensors(const LanguageModel& model) {
  const nn::EncoderLayer& layer = model.stack.layers[0];
  const std::string at = "model.layers.0.";
  return {{"model.embed_tokens.weight", model.words.weight},
          {"model.norm.weight", model.stack.final_norm.weight},
          {at + "input_layernorm.weight", layer.attention_norm.weight},
          {at + "post_attention_layernorm.weight", layer.feed_forward_norm.weight},
          {at + "self_attn.q_proj.weight", layer.attention.q.weight},
          {at + "self_attn.k_proj.weight", layer.attention.k.weight},
          {at + "self_attn.v_proj.weight", layer.attention.v.weight},
          {at + "self_attn.o_proj.weight", layer.attention.output.weight},
          {at + "mlp.gate_proj.weight", layer.feed_forward.gate.weight},
          {at + "mlp.up_proj.weight", layer.feed_forward.hidden.weight},
          {at + "mlp.down_proj.weight", layer.feed_forward.output.weight}};
}

TEST(LoadLanguageModel, ComputesWhatTheSavedOneDidAndRefusesTensorsThatDoNotFit) {
  LanguageModelConfig config = read(llama_json());
  const LanguageModel model = model_of(config);
  const auto load = [&](const auto& change) {
    ModelFolder folder;
    folder.write_json("config.json", llama_json());
    auto tensors = llama_tensors(model);
    change(tensors);
    io::save_tensors(folder.path() / "model.safetensors", tensors);
    return load_language_model(folder.path());
  };
  const Tensor ids = Tensor::of<std::int64_t>({3}, {1, 6, 2});
  Tensor expected(DType::f32, {3, 7}), logits(DType::f32, {3, 7});
  model.forward({.ids = ids}, {.logits = expected});
  load([](auto& tensors) { tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", Tensor(DType::f32, {1})}); }).forward({.ids = ids}, {.logits = logits});
  EXPECT_TRUE(same_bits(logits, expected));
  load([&](auto& tensors) { tensors.push_back({"lm_head.weight", model.words.weight}); });
  EXPECT_ERROR(load([](auto& tensors) { tensors.push_back({"lm_head.weight", Tensor(DType::f32, {7, 4})}); }), format, HasSubstr("'lm_head.weight' differs from the embedding"));
  EXPECT_ERROR(load([](auto& tensors) { tensors.pop_back(); }), format, HasSubstr("has no tensor 'model.layers.0.mlp.down_proj.weight', which config.json implies"));
  EXPECT_ERROR(load([](auto& tensors) { tensors[4].tensor = Tensor(DType::f32, {4, 5}); }), format, HasSubstr("'model.layers.0.self_attn.q_proj.weight' is [4,5]; config.json makes it [4,4]"));
  EXPECT_ERROR(load([](auto& tensors) { tensors[4].tensor = Tensor(DType::f64, {4, 4}); }), format, HasSubstr("is float64; it must be float32, as '"));
  EXPECT_ERROR(load([](auto& tensors) { tensors.push_back({"model.layers.0.self_attn.q_proj.bias", Tensor(DType::f32, {4})}); }), format,
               HasSubstr("'model.layers.0.self_attn.q_proj.bias' [4] has no place in a model of the type llama"));
  EXPECT_ERROR(load([](auto& tensors) { tensors.clear(); }), format, HasSubstr("is not a model of the type llama: none of its 0 tensors is named 'model.embed_tokens.weight' or 'embed_tokens.weight'"));
  EXPECT_ERROR(load([](auto& tensors) { tensors[0].tensor = Tensor(DType::i64, {7, 4}); }), format, HasSubstr("is int64; a floating dtype is needed"));
}

}  // namespace
}  // namespace polyhead::models
