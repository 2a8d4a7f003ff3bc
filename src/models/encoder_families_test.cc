// Tests what encoder families such as ESM-2 and ModernBERT have in addition to BERT. tests/python/test_encoders.py compares each family with transformers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/text.h"
#include "models/bert_embeddings.h"
#include "models/encoder_families.h"
#include "models/test_error_matcher.h"
#include "models/test_model_folder.h"
#include "polyhead/models/ablation.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::models {
namespace {

using nlohmann::json;
using test::Random;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

BertConfig tiny_encoder() {
  return {.vocabulary = 7, .positions = 9, .segments = 2, .width = 8, .layers = 3, .heads = 2, .hidden_width = 5, .epsilon = 1e-3, .dtype = DType::f64};
}

// Returns a config for each single difference from BERT, and configs with all differences of ESM-2 and of ModernBERT.
std::vector<std::pair<const char*, BertConfig>> configs() {
  const nn::RotaryEmbeddingConfig rotary{.width = 4, .base = 100}, local{.width = 4, .base = 10};
  std::vector<std::pair<const char*, BertConfig>> all;
  const auto add = [&](const char* name, const auto& change) {
    BertConfig config = tiny_encoder();
    change(config);
    all.emplace_back(name, config);
  };
  add("projected embeddings", [](BertConfig& c) { c.embedding_width = 3; });
  add("shared layers", [](BertConfig& c) { c.embedding_width = 8, c.shared_layers = {0, 1, 0}; });
  add("positions after padding", [](BertConfig& c) { c.padding_token = 1; });
  add("relative bias", [](BertConfig& c) { c.relative_buckets = 8, c.segments = 0; });
  add("ESM-2", [&](BertConfig& c) {
    c.rotary = rotary, c.segments = 0, c.norm_position = nn::NormPosition::pre, c.embedding_norm = false, c.mask_token = 5, c.zero_padding = true;
  });
  add("ESM, learned positions", [](BertConfig& c) { c.padding_token = 1, c.segments = 0, c.norm_position = nn::NormPosition::pre, c.mask_token = 5, c.zero_padding = true; });
  add("ModernBERT", [&](BertConfig& c) {
    c.rotary = rotary, c.local_rotary = local, c.window_reach = {0, 1, 2}, c.segments = 0, c.norm_position = nn::NormPosition::pre, c.first_norm = false;
    c.gated = true, c.bias = c.feed_forward_bias = c.norm_bias = false;
  });
  return all;
}

const Tensor kTwoTexts = Tensor::of<std::int64_t>({2, 5}, {2, 5, 6, 3, 4, 2, 6, 3, 1, 1});
const Tensor kTokensOfTwoTexts = Tensor::of<bool>({2, 5}, {true, true, true, true, true, true, true, true, false, false});

const Tokenizer kTokenizer({"[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d"});

BertEncoder random_encoder(const BertConfig& config, std::uint64_t seed) {
  BertEncoder encoder(config, 11);
  Random random(seed);
  encoder.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor); });
  return encoder;
}

TEST(EncoderFamilies, GradientsAgreeWithCentralDifferences) {
  for (const auto& [name, config] : configs()) {
    SCOPED_TRACE(name);
    Random random(3);
    BertEncoder encoder = random_encoder(config, 4);
    const BertInput input{.ids = kTwoTexts, .attend_keys = kTokensOfTwoTexts};
    Tensor hidden(DType::f64, {2, 5, 8});
    const Tensor d_hidden = random.tensor(DType::f64, {2, 5, 8});
    BertEncoder::Saved saved;
    encoder.forward(input, {.hidden = hidden}, {}, &saved);
    BertEncoder grads = random_encoder(config, 5);  // holds the gradients; backward() overwrites these values
    encoder.backward(saved, d_hidden, {&grads});
    test::expect_gradients(
        [&] {
          encoder.forward(input, {.hidden = hidden});
          return test::weighted_sum(hidden, d_hidden);
        },
        test::parameter_leaves(encoder, grads));
  }
}

// `polyhead trace` runs the attention of one layer on the hidden states that enter the layer. The attention weights must be those of the whole model.
TEST(EncoderFamilies, ALayerAloneHasTheAttentionWeightsOfTheModel) {
  for (const auto& [name, config] : configs()) {
    SCOPED_TRACE(name);
    const BertEncoder encoder = random_encoder(config, 6);
    Tensor all(DType::f64, {4, 1, 5, 8}), maps(DType::f64, {3, 1, 2, 5, 5});
    encoder.forward({.ids = kTwoTexts.view().slice(0, 0, 1)}, {.all_hidden = all, .attentions = maps});
    const BertEncoder::RotaryTables tables = encoder.rotary_tables(5);
    for (std::int64_t i = 0; i < 3; ++i) {
      const EncoderLayer& layer = encoder.layers[encoder.parameters_of(i)];
      Tensor x = Tensor::copy_of(all.view().select(0, i)), normed = Tensor::copy_of(x), out(DType::f64, {1, 5, 8}), own(DType::f64, {1, 2, 5, 5});
      if (config.norm_position == nn::NormPosition::pre && layer.attention_norm.weight) layer.attention_norm.forward(x, normed);
      nn::MultiHeadAttention::Saved saved;
      layer.attention.forward({.query = normed}, out, encoder.attention_options(i, tables), &saved);
      attention_map(saved.maps(), own, saved.sdpa);
      EXPECT_TRUE(test::near(own, maps.view().select(0, i), 1e-12)) << i;
    }
  }
}

TEST(EncoderFamilies, SharedLayersAreHeldOnce) {
  BertConfig config = tiny_encoder();
  config.shared_layers = {0, 0, 1};
  const BertEncoder encoder(config, 11);
  EXPECT_EQ(encoder.layers.size(), 2u);
  EXPECT_THAT((std::vector{encoder.parameters_of(0), encoder.parameters_of(1), encoder.parameters_of(2)}), ElementsAre(0u, 0u, 1u));
  config.shared_layers = {1, 0, 0};
  EXPECT_ERROR(BertEncoder(config, 11), invalid_argument, HasSubstr("shared_layers has the index 1; it must lie in [0,0]"));
  config.shared_layers = {0};
  EXPECT_ERROR(BertEncoder(config, 11), invalid_argument, HasSubstr("shared_layers has 1 indices for 3 layers"));
}

TEST(EncoderFamilies, PositionsCountTheTokensThatAreNotPadding) {
  BertConfig config = tiny_encoder();
  config.padding_token = 1;
  const Tensor places = position_ids(config, kTwoTexts);
  EXPECT_THAT((std::vector(places.data<std::int64_t>(), places.data<std::int64_t>() + 10)), ElementsAre(2, 3, 4, 5, 6, 2, 3, 4, 1, 1));
  EXPECT_EQ(config.longest(), 7);
  const Tensor longer = Tensor::of<std::int64_t>({9}, {2, 1, 2, 2, 1, 2, 2, 2, 2});  // 9 tokens, of which 7 are no padding
  EXPECT_EQ(position_ids(config, longer).data<std::int64_t>()[8], 8);
  const Tensor too_long = Tensor::of<std::int64_t>({8}, {2, 2, 2, 2, 2, 2, 2, 2});
  EXPECT_ERROR(position_ids(config, too_long), invalid_argument, HasSubstr("the text has 8 tokens; the model has positions for 7"));
}

TEST(EncoderFamilies, ATextWithRotaryPositionsMayBeLongerThanTheConfigSays) {
  BertConfig config = tiny_encoder();
  config.rotary = nn::RotaryEmbeddingConfig{.width = 4};
  const Tensor ids(DType::i64, {20});
  Tensor hidden(DType::f64, {20, 8});
  BertEncoder(config, 11).forward({.ids = ids}, {.hidden = hidden});
}

TEST(EncoderFamilies, LayersWithAWindowHaveTheLocalAngles) {
  BertConfig local = tiny_encoder(), plain = tiny_encoder();
  local.rotary = nn::RotaryEmbeddingConfig{.width = 4, .base = 100};
  local.local_rotary = plain.rotary = nn::RotaryEmbeddingConfig{.width = 4, .base = 10};
  local.window_reach = {9, 9, 9};  // each window is wider than the text, so all tokens lie inside
  Tensor a(DType::f64, {2, 5, 8}), b(DType::f64, {2, 5, 8});
  random_encoder(local, 12).forward({.ids = kTwoTexts}, {.hidden = a});
  random_encoder(plain, 12).forward({.ids = kTwoTexts}, {.hidden = b});
  EXPECT_TRUE(test::near(a, b, 1e-12));
  local.window_reach = {0, 0, 0};
  random_encoder(local, 12).forward({.ids = kTwoTexts}, {.hidden = a});
  EXPECT_FALSE(test::near(a, b, 1e-3));
}

TEST(EncoderFamilies, AHeadIsSwitchedOffInItsOwnLayer) {
  BertConfig config = tiny_encoder();
  config.shared_layers = {0, 0, 0};
  SentenceModel shared{kTokenizer, random_encoder(config, 8)}, own{kTokenizer, random_encoder(tiny_encoder(), 9)};
  own.encoder.words = shared.encoder.words, own.encoder.positions = shared.encoder.positions, own.encoder.segments = shared.encoder.segments, own.encoder.embedding_norm = shared.encoder.embedding_norm;
  for (EncoderLayer& layer : own.encoder.layers) layer = shared.encoder.layers[0];
  const SentenceResult result = shared.run(TokenizedText{.ids = {2, 3, 4}, .pieces = {"a", "b", "c"}, .segments = {0, 0, 0}});
  for (std::int64_t layer = 0; layer < 3; ++layer) EXPECT_EQ(change_without_head(shared, result, layer, 1), change_without_head(own, result, layer, 1)) << layer;
  EXPECT_EQ(shared.encoder.layers.size(), 1u);
  EXPECT_THAT(shared.encoder.config.shared_layers, ElementsAre(0, 0, 0));
}

// The viewer's page and `polyhead trace --cell` compute attention weights from q and k, so they also need the bias and the windows.
TEST(EncoderFamilies, HeadVectorsComeWithTheBiasAndTheWindows) {
  for (const auto& [name, config] : configs()) {
    SCOPED_TRACE(name);
    const SentenceModel model{kTokenizer, random_encoder(config, 10)};
    const SentenceResult result = model.run(TokenizedText{.ids = {2, 3, 4, 6, 2}, .pieces = {"a", "b", "c", "d", "e"}, .segments = {0, 0, 0, 1, 1}}, {.head_vectors = true});
    EXPECT_EQ(static_cast<bool>(result.bias), config.relative_buckets > 0);
    EXPECT_EQ(static_cast<bool>(result.attend), !config.window_reach.empty());
    Tensor scores(DType::f64, {3, 2, 5, 5});
    const auto at = [](const Tensor& tensor, std::initializer_list<std::int64_t> place) {
      std::int64_t offset = 0, d = 0;
      for (const std::int64_t i : place) offset = offset * tensor.extent(static_cast<int>(d)) + i, ++d;
      return offset;
    };
    for (std::int64_t l = 0; l < 3; ++l)
      for (std::int64_t n = 0; n < 2; ++n)
        for (std::int64_t t = 0; t < 5; ++t) {
          double row[5], sum = 0;
          for (std::int64_t s = 0; s < 5; ++s) {
            double score = 0;
            for (std::int64_t h = 0; h < 4; ++h) score += result.q.data<double>()[at(result.q, {l, n, t, h})] * result.k.data<double>()[at(result.k, {l, n, s, h})] / 2;
            if (result.bias) score += result.bias.data<double>()[at(result.bias, {0, n, t, s})];
            row[s] = result.attend && !result.attend.data<bool>()[at(result.attend, {l, 0, t, s})] ? 0 : std::exp(score);
            sum += row[s];
          }
          for (std::int64_t s = 0; s < 5; ++s) EXPECT_NEAR(result.attentions.data<double>()[at(result.attentions, {l, n, t, s})], row[s] / sum, 1e-12);
        }
  }
}

TEST(EncoderFamilies, ATextOfMaskTokensAloneIsRefused) {
  BertConfig config = tiny_encoder();
  config.mask_token = 5;
  const BertEncoder encoder(config, 11);
  const Tensor ids = Tensor::of<std::int64_t>({2, 2}, {5, 2, 5, 5}), none = Tensor::of<bool>({2, 2}, {true, true, false, false});
  Tensor hidden(DType::f64, {2, 2, 8});
  EXPECT_ERROR(encoder.forward({.ids = ids}, {.hidden = hidden}), invalid_argument, HasSubstr("a text of 2 tokens has 2 mask tokens (id 5)"));
  encoder.forward({.ids = ids, .attend_keys = none}, {.hidden = hidden});  // the second text is only padding
}

// Returns a config.json of a family, in which settings have the names that this family uses.
json config_of(std::string_view model_type) {
  const EncoderFamily& family = find_encoder_family("", model_type);
  const EncoderKeys& keys = family.keys;
  json config = R"({"vocab_size": 30, "pad_token_id": 1, "mask_token_id": 4})"_json;
  config["model_type"] = model_type;
  for (const auto& [key, value] : {std::pair{keys.width, 8}, {keys.layers, 2}, {keys.heads, 2}, {keys.hidden_width, 6}, {keys.positions, 12}, {keys.segments, 2}})
    if (!key.empty()) config[std::string(key)] = value;
  return config;
}

BertConfig read_encoder(const json& config) {
  const ModelFolder folder;
  folder.write_json("config.json", config);
  return read_bert_config(folder.path() / "config.json");
}

BertConfig read_encoder(std::string_view model_type, std::string_view key, const json& value) {
  json config = config_of(model_type);
  config[std::string(key)] = value;
  return read_encoder(config);
}

TEST(EncoderConfigs, EveryFamilyIsRead) {
  for (const std::string_view name : encoder_families()) {
    SCOPED_TRACE(name);
    const BertConfig config = read_encoder(config_of(name));
    EXPECT_EQ(config.family, name);
    EXPECT_EQ(config.width, 8);
    EXPECT_EQ(config.hidden_width, 6);
    EXPECT_EQ(config.heads, 2);
    EXPECT_EQ(config.layers, 2);
    EXPECT_EQ(config.vocabulary, 30);
  }
}

TEST(EncoderConfigs, MissingKeysOfEveryFamilyAreNamed) {
  for (const std::string_view name : encoder_families()) {
    SCOPED_TRACE(name);
    const EncoderKeys& keys = find_encoder_family("", name).keys;
    for (const std::string_view key : {keys.width, keys.layers, keys.heads, keys.hidden_width, keys.positions, keys.segments}) {
      if (key.empty()) continue;
      json config = config_of(name);
      config.erase(std::string(key));
      EXPECT_ERROR(read_encoder(config), format, HasSubstr("config.json: " + std::string(key) + " is missing"));
      EXPECT_ERROR(read_encoder(name, key, std::uint64_t{1} << 40), format, HasSubstr("it must be in [1, "));
      EXPECT_ERROR(read_encoder(name, key, 0), format, HasSubstr("is 0; it must be in [1, "));
    }
    EXPECT_ERROR(read_encoder(name, keys.heads, 3), format, HasSubstr("it must divide"));
  }
}

TEST(EncoderConfigs, DefaultsAreThoseOfTransformers) {
  EXPECT_EQ(read_encoder(config_of("roberta")).padding_token, 1);
  EXPECT_EQ(read_encoder("roberta", "pad_token_id", nullptr).padding_token, 1);
  EXPECT_EQ(read_encoder("roberta", "pad_token_id", 3).padding_token, 3);
  EXPECT_EQ(read_encoder("mpnet", "pad_token_id", 3).padding_token, 1);
  EXPECT_EQ(read_encoder("bert", "pad_token_id", 3).padding_token, std::nullopt);
  EXPECT_EQ(read_encoder(config_of("albert")).activation, nn::Activation::gelu_tanh);
  EXPECT_EQ(read_encoder(config_of("albert")).embedding_width, 128);
  EXPECT_EQ(read_encoder("albert", "embedding_size", 8).embedding_width, 8);
  EXPECT_EQ(read_encoder("electra", "embedding_size", 8).embedding_width, 0);
  EXPECT_EQ(read_encoder("esm", "hidden_act", "relu").activation, nn::Activation::gelu);  // transformers ignores hidden_act of ESM, too
  EXPECT_THAT(read_encoder("modernbert", "num_hidden_layers", 5).window_reach, ElementsAre(0, 64, 64, 0, 64));
  EXPECT_EQ(read_encoder(config_of("modernbert")).rotary->base, 160000);
  EXPECT_EQ(read_encoder(config_of("modernbert")).local_rotary->base, 10000);
  EXPECT_EQ(read_encoder("modernbert", "local_rope_theta", nullptr).local_rotary->base, 160000);
  json groups = config_of("albert");
  groups["num_hidden_layers"] = 5, groups["num_hidden_groups"] = 2;
  EXPECT_THAT(read_encoder(groups).shared_layers, ElementsAre(0, 0, 0, 1, 1));
}

TEST(EncoderConfigs, UnsupportedSettingsAreNamed) {
  for (const std::string_view name : encoder_families()) {
    SCOPED_TRACE(name);
    EXPECT_ERROR(read_encoder(name, "is_decoder", true), unsupported, HasSubstr("is_decoder is true; only encoders"));
    EXPECT_ERROR(read_encoder(name, "add_cross_attention", true), unsupported, HasSubstr("add_cross_attention is true"));
    EXPECT_ERROR(read_encoder(name, "position_embedding_type", "relative_key_query"), unsupported, HasSubstr("position_embedding_type is 'relative_key_query'; only 'absolute'"));
    EXPECT_ERROR(read_encoder(name, "pruned_heads", R"({"0": [1]})"_json), unsupported, HasSubstr("pruned_heads names heads"));
    read_encoder(name, "pruned_heads", json::object());
    read_encoder(name, "an_unknown_key", true);
  }
  EXPECT_ERROR(read_encoder("bert", "hidden_act", "gelu_fast"), unsupported, HasSubstr("hidden_act is 'gelu_fast'; gelu, gelu_new,"));
  EXPECT_ERROR(read_encoder("bert", "position_embedding_type", "rotary"), unsupported, HasSubstr("only 'absolute' is supported"));
  EXPECT_ERROR(read_encoder("mpnet", "relative_attention_num_buckets", 16), unsupported, HasSubstr("is 16; only 32 is supported"));
  EXPECT_ERROR(read_encoder("esm", "is_folding_model", true), unsupported, HasSubstr("ESMFold"));
  EXPECT_ERROR(read_encoder("esm", "rope_scaling", R"({"type": "linear"})"_json), unsupported, HasSubstr("rope_scaling is given"));
  EXPECT_ERROR(read_encoder("modernbert", "rope_scaling", R"({"type": "linear"})"_json), unsupported, HasSubstr("rope_scaling is given"));
  EXPECT_ERROR(read_encoder("modernbert", "rope_parameters", R"({"full_attention": {"rope_type": "yarn"}})"_json), unsupported, HasSubstr("rope_parameters.full_attention.rope_type is 'yarn'"));
  for (const char* type : {"default", "yarn"}) {
    EXPECT_ERROR(read_encoder("modernbert", "rope_parameters", json({{"rope_type", type}, {"rope_theta", 7.0}})), unsupported,
                 HasSubstr("is not known; known here: full_attention, sliding_attention"));
    EXPECT_ERROR(read_encoder("modernbert", "rope_parameters", json({{"full_attention", {{"type", type}}}})), unsupported,
                 HasSubstr("rope_parameters.full_attention.type is not known; known here: rope_type, rope_theta"));
  }
  EXPECT_ERROR(read_encoder("modernbert", "layer_types", R"(["full_attention", "chunked"])"_json), unsupported, HasSubstr("layer_types has"));
}

TEST(EncoderConfigs, KeysThatMayChangeResultsAreRefusedUnlessTheyAreSwitchedOff) {
  for (const std::string_view name : encoder_families()) {
    SCOPED_TRACE(name);
    EXPECT_ERROR(read_encoder(name, "quantization_config", json({{"quant_method", "x"}})), unsupported, HasSubstr(cat("quantization_config is an object; models of the type ", name, " are not known to have this key")));
    EXPECT_ERROR(read_encoder(name, "use_gated_mlp", true), unsupported, HasSubstr("use_gated_mlp is true"));
    EXPECT_ERROR(read_encoder(name, "feed_forward_type", "geglu"), unsupported, HasSubstr("feed_forward_type is \"geglu\""));
    EXPECT_ERROR(read_encoder(name, "sliding_window", 64), unsupported, HasSubstr("sliding_window is the number 64"));
    EXPECT_ERROR(read_encoder(name, "is_causal", true), unsupported, HasSubstr("is_causal is true"));
    for (const char* key : {"quantization_config", "rope_scaling", "sliding_window"}) read_encoder(name, key, nullptr);
    for (const char* key : {"use_gated_mlp", "is_causal", "alibi"}) read_encoder(name, key, false);
    read_encoder(name, "partial_rotary_factor", 1);
    read_encoder(name, "feed_forward_type", "original");
  }
  EXPECT_ERROR(read_encoder("bert", "rope_theta", 5.0), unsupported, HasSubstr("rope_theta is"));
  read_encoder("esm", "rope_theta", 10000.0);  // transformers also writes it for learned positions
  EXPECT_ERROR(read_encoder("bert", "layer_types", json({"full_attention", "full_attention"})), unsupported, HasSubstr("layer_types is"));
}

TEST(EncoderConfigs, OtherNamesOfAKeyMustHaveItsValue) {
  struct Names {
    const char *alias, *key;
    int value;
  };
  for (const Names& names : {Names{"hidden_size", "dim", 8}, Names{"num_hidden_layers", "n_layers", 2}, Names{"num_attention_heads", "n_heads", 2}}) {
    EXPECT_EQ(read_encoder("distilbert", names.alias, names.value).width, 8);
    EXPECT_EQ(read_encoder("distilbert", names.alias, nullptr).layers, 2);
    EXPECT_ERROR(read_encoder("distilbert", names.alias, 4), format, HasSubstr(cat(names.alias, " is 4 and ", names.key, " is ", names.value, "; both keys must have the same value")));
  }
}

TEST(EncoderConfigs, AFolderWithAnAdapterIsRefused) {
  const ModelFolder folder;
  folder.write_json("config.json", config_of("bert"));
  folder.write_json("adapter_config.json", {{"peft_type", "LORA"}});
  EXPECT_ERROR(read_bert_config(folder.path() / "config.json"), unsupported, HasSubstr("adapter (PEFT), which polyhead does not apply; merge it with merge_and_unload() and save the model again"));
}

TEST(EncoderConfigs, ValuesThatDoNotFitAreNamed) {
  EXPECT_ERROR(read_encoder("roberta", "pad_token_id", 30), format, HasSubstr("pad_token_id is 30; it must be in [0, 30), the vocabulary"));
  EXPECT_ERROR(read_encoder("roberta", "pad_token_id", 11), format, HasSubstr("max_position_embeddings is 12; positions begin at the padding token + 1 = 12"));
  EXPECT_ERROR(read_encoder("esm", "pad_token_id", nullptr), format, HasSubstr("pad_token_id is missing"));
  json esm = config_of("esm");
  esm["token_dropout"] = true;
  EXPECT_EQ(read_encoder(esm).mask_token, 4);
  esm["mask_token_id"] = nullptr;
  EXPECT_ERROR(read_encoder(esm), format, HasSubstr("mask_token_id is missing; token_dropout is true"));
  esm = config_of("esm");
  esm["position_embedding_type"] = "rotary", esm["hidden_size"] = 6;
  EXPECT_ERROR(read_encoder(esm), format, HasSubstr("rotary positions need heads of an even width"));
  EXPECT_ERROR(read_encoder("albert", "num_hidden_groups", 3), format, HasSubstr("num_hidden_groups is 3; it may be at most num_hidden_layers = 2"));
  EXPECT_ERROR(read_encoder("albert", "inner_group_num", 40000), format, HasSubstr("inner_group_num is 40000 and num_hidden_layers is 2; their product may be at most 65536"));
  EXPECT_ERROR(read_encoder("modernbert", "local_attention", 1), format, HasSubstr("local_attention is 1; it must be at least 2"));
  EXPECT_ERROR(read_encoder("modernbert", "layer_types", R"(["full_attention"])"_json), format, HasSubstr("has 1 words; it must have one for each of the 2 layers"));
  EXPECT_ERROR(read_encoder("modernbert", "rope_parameters", 3), format, HasSubstr("rope_parameters is the number 3; an object is needed"));
  EXPECT_ERROR(read_encoder("modernbert", "rope_parameters", R"({"sliding_attention": {"rope_theta": -1}})"_json), format, HasSubstr("rope_parameters.sliding_attention.rope_theta is -1"));
}

TEST(EncoderConfigs, OtherKindsOfModelsAreRefusedWithTheKnownOnes) {
  EXPECT_ERROR(read_encoder(R"({"model_type": "deberta-v2"})"_json), unsupported, AllOf(HasSubstr("model_type is 'deberta-v2', which is not supported: its scores"), HasSubstr("modernbert")));
  EXPECT_ERROR(read_encoder(R"({"model_type": "xlm_roberta"})"_json), unsupported, AllOf(HasSubstr("known encoders are bert, roberta"), HasSubstr("the nearest is 'xlm-roberta'")));
  EXPECT_ERROR(read_encoder(R"({"model_type": "llama"})"_json), unsupported, HasSubstr("model_type is 'llama', a decoder; known encoders are bert"));
  EXPECT_ERROR(read_encoder(R"({"model_type": 3})"_json), format, HasSubstr("a string is needed"));
}

}  // namespace
}  // namespace polyhead::models
