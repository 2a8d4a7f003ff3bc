#include "polyhead/models/sentence_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/minilm_test_data.h"
#include "models/test_error_matcher.h"
#include "models/test_model_folder.h"
#include "polyhead/models/ablation.h"
#include "support/compare.h"

namespace polyhead::models {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Compares with results of another implementation in float32 (tests/data/minilm).
class MiniLm : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = new SentenceModel(load_bert(minilm_directory()));
    expected_ = new io::TensorFile(io::open_tensors(minilm_expected("expected.safetensors")));
    texts_ = read_json(minilm_expected("texts.json")).at("attend").get<std::vector<std::string>>();
  }
  static void TearDownTestSuite() {
    delete model_;
    delete expected_;
  }
  static const Tensor& expected(const std::string& name, std::size_t text) { return expected_->at(name + "_" + std::to_string(text)); }

  static inline SentenceModel* model_ = nullptr;
  static inline io::TensorFile* expected_ = nullptr;
  static inline std::vector<std::string> texts_;
};

TEST_F(MiniLm, AttentionsHiddenStatesAndEmbeddingsAgreeWithThePublishedImplementation) {
  ASSERT_EQ(texts_.size(), 4u);
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    SCOPED_TRACE(texts_[i]);
    const SentenceResult result = model_->run(texts_[i]);
    EXPECT_TRUE(test::same_bits(result.ids, expected("ids", i)));
    EXPECT_TRUE(test::near(result.attentions, expected("attentions", i), 1e-5));
    EXPECT_TRUE(test::near(result.hidden, expected("hidden", i), 1e-5));
    EXPECT_TRUE(test::near(result.embedding, expected("embedding", i), 1e-5));
  }
}

TEST_F(MiniLm, APaddedBatchGivesTheEmbeddingsOfTheTextsAlone) {
  const Tensor embeddings = model_->embed(texts_);
  EXPECT_EQ(embeddings.shape(), (Shape{4, 384}));
  for (std::size_t i = 0; i < texts_.size(); ++i)
    EXPECT_TRUE(test::near(embeddings.view().select(0, static_cast<std::int64_t>(i)), expected("embedding", i), 1e-5)) << texts_[i];
}

TEST_F(MiniLm, APairIsTwoSegments) {
  const SentenceResult pair = model_->run("a cat", "a dog", {.all_hidden = true});
  EXPECT_THAT(pair.tokens.segments, ElementsAre(0, 0, 0, 0, 1, 1, 1));
  const SentenceResult single = model_->run("a cat [SEP] a dog", {.all_hidden = true});
  EXPECT_TRUE(test::same_bits(pair.ids, single.ids));
  const auto start = [](const SentenceResult& r) { return r.all_hidden.view().select(0, 0).slice(0, 0, 4); };
  EXPECT_TRUE(test::same_bits(start(pair), start(single)));
  EXPECT_GT(test::max_abs_difference(pair.hidden, single.hidden), 1e-2);
}

TEST_F(MiniLm, A512TokenTextIsServedAndALongerOneIsRefusedOrCut) {
  std::string text;
  for (int i = 0; i < 510; ++i) text += "cat ";
  EXPECT_EQ(model_->run(text, {.attentions = false}).ids.numel(), 512);
  text += "cat";
  EXPECT_ERROR(model_->run(text), invalid_argument, AllOf(HasSubstr("513"), HasSubstr("512")));
  const TokenizedText cut = model_->tokenize(text, WhenTooLong::longest_first);
  EXPECT_EQ(cut.ids.size(), 512u);
  EXPECT_EQ(cut.dropped_tokens, 1);
}

TEST_F(MiniLm, EmbeddingNoTextsGivesNoRows) { EXPECT_EQ(model_->embed({}).shape(), (Shape{0, 384})); }

TEST(SentenceEmbedding, IsTheMeanOfKeptTokensAtUnitLength) {
  const Tensor hidden = Tensor::of<double>({2, 2, 2}, {6, 0, 0, 8, 5, 5, -3, 4});
  const Tensor keep = Tensor::of<bool>({2, 2}, {true, true, false, true});
  Tensor out(DType::f64, {2, 2});
  sentence_embedding(hidden, keep, out);
  EXPECT_TRUE(test::near(out, Tensor::of<double>({2, 2}, {0.6, 0.8, -0.6, 0.8}), 1e-15));
  sentence_embedding(hidden.view().select(0, 0), {}, out.view().select(0, 1));
  EXPECT_TRUE(test::near(out, Tensor::of<double>({2, 2}, {0.6, 0.8, 0.6, 0.8}), 1e-15));
}

TEST(SentenceEmbedding, OfNoTokensIsZero) {
  const Tensor hidden = Tensor::of<float>({1, 1, 2}, {5, 6});
  Tensor out = Tensor::of<float>({1, 2}, {1, 1});
  sentence_embedding(hidden, during_call(Tensor::of<bool>({1, 1}, {false})), out);
  EXPECT_TRUE(test::near(out, Tensor(DType::f32, {1, 2}), 0));
  sentence_embedding(during_call(Tensor(DType::f32, {1, 0, 2})), {}, out);
  EXPECT_TRUE(test::near(out, Tensor(DType::f32, {1, 2}), 0));
  EXPECT_ERROR(sentence_embedding(hidden, {}, during_call(Tensor(DType::f32, {2, 2}))), invalid_argument, HasSubstr("out is [2,2]; it must be [1,2]"));
}

TEST(LoadBert, AnEmbeddingThatModulesJsonMakesInAnotherWayIsRefused) {
  ModelFolder folder;
  folder.write_json("config.json", config_json(small_bert()));
  io::save_tensors(folder.path() / "model.safetensors", hf_tensors(BertEncoder(small_bert(), 3)));
  folder.write("vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\nb\nc\nd\n");
  std::filesystem::create_directory(folder.path() / "1_Pooling");
  const auto module = [](const char* kind, const char* path) { return nlohmann::json{{"type", std::string("sentence_transformers.models.") + kind}, {"path", path}}; };
  const auto reason = [&](const nlohmann::json& modules, const nlohmann::json& pooling) {
    folder.write_json("modules.json", modules);
    folder.write_json("1_Pooling/config.json", pooling);
    SentenceModel model = load_bert(folder.path());
    SentenceResult result = model.run("a b");
    EXPECT_EQ(static_cast<bool>(result.embedding), model.other_embedding.empty());
    const std::vector<std::string> texts{"a b"}, files = quantized_bert_files(folder.path());
    EXPECT_EQ(std::ranges::find(files, "modules.json") != files.end(), !model.other_embedding.empty());
    ModelFolder copy;
    quantize_bert(folder.path(), copy.path());
    EXPECT_EQ(load_bert(copy.path()).other_embedding, model.other_embedding);
    if (model.other_embedding.empty()) {
      const Tensor embeddings = model.embed(texts);
      EXPECT_TRUE(test::near(embeddings.view().select(0, 0), result.embedding, 1e-6));
    } else {
      EXPECT_ERROR(model.embed(texts), unsupported, HasSubstr("SentenceModel.embed: " + model.other_embedding + "; polyhead computes embeddings by the mean over the tokens alone"));
      EXPECT_ERROR(change_without_head(model, result, 0, 0), unsupported, HasSubstr("this model has another: " + model.other_embedding));
    }
    return model.other_embedding;
  };
  const nlohmann::json modules{module("Transformer", ""), module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")}, mean{{"word_embedding_dimension", 6}, {"pooling_mode_mean_tokens", true}, {"pooling_mode_cls_token", false}};
  EXPECT_EQ(reason(modules, mean), "");
  EXPECT_EQ(reason(nlohmann::json::array({module("Transformer", ""), module("Pooling", "1_Pooling")}), nlohmann::json::object()), "");
  EXPECT_EQ(reason(modules, R"({"pooling_mode_mean_tokens": false, "pooling_mode_cls_token": true})"_json), "1_Pooling/config.json: pooling_mode_cls_token is true");
  EXPECT_EQ(reason(modules, R"({"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true})"_json), "1_Pooling/config.json: pooling_mode_max_tokens is true");
  EXPECT_EQ(reason(modules, R"({"pooling_mode_mean_tokens": false})"_json), "1_Pooling/config.json: pooling_mode_mean_tokens is false");
  EXPECT_EQ(reason(modules, R"({"pooling_mode": "cls"})"_json), "1_Pooling/config.json: pooling_mode is \"cls\"");
  EXPECT_EQ(reason(modules, R"({"pooling_mode": ["cls", "mean"]})"_json), "1_Pooling/config.json: pooling_mode is an array");
  EXPECT_EQ(reason(modules, R"({"pooling_mode_mean_tokens": 1})"_json), "1_Pooling/config.json: pooling_mode_mean_tokens is the number 1");
  EXPECT_EQ(reason(modules, R"({"pooling_mode_\n": true})"_json), "1_Pooling/config.json: \"pooling_mode_\\n\" is true");
  EXPECT_EQ(reason(nlohmann::json::array({module("Transformer", ""), module("Pooling", "none")}), mean), "modules.json has a Pooling, and none/config.json is missing");
  EXPECT_EQ(reason(nlohmann::json::array({module("Transformer", ""), module("Pooling", "1_Pooling"), module("Dense", "2_Dense")}), mean), "modules.json has the module Dense");
  EXPECT_EQ(reason(nlohmann::json::array({module("Dense\n", "2_Dense")}), mean), "modules.json has the module \"Dense\\n\"");
  EXPECT_EQ(reason(nlohmann::json::array({module("Transformer", "")}), mean), "modules.json has no Pooling");
  EXPECT_EQ(reason(nlohmann::json::array(), mean), "modules.json has no Pooling");
  for (const char* outside : {"../other", "1_Pooling/..", "/tmp"}) {
    folder.write_json("modules.json", nlohmann::json::array({module("Pooling", outside)}));
    EXPECT_ERROR(load_bert(folder.path()), format, HasSubstr(std::string("modules.json: path is \"") + outside + "\"; it must be a folder inside the model's folder"));
  }
  folder.write_json("modules.json", nlohmann::json::object());
  EXPECT_ERROR(load_bert(folder.path()), format, HasSubstr("modules.json is an object; a list of modules is needed"));
  folder.write_json("modules.json", R"([3])"_json);
  EXPECT_ERROR(load_bert(folder.path()), format, HasSubstr("modules.json: a module has no type, which must be a string"));
}

TEST(LoadBert, AVocabularyThatIsLargerThanTheModelIsAnError) {
  ModelFolder folder;
  folder.write_json("config.json", config_json(small_bert()));
  io::save_tensors(folder.path() / "model.safetensors", hf_tensors(BertEncoder(small_bert(), 3)));
  folder.write("vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\nb\nc\nd\n");
  EXPECT_EQ(load_bert(folder.path()).run("a b").ids.numel(), 4);
  folder.write("vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\nb\nc\nd\ne\n");
  EXPECT_ERROR(load_bert(folder.path()), format, AllOf(HasSubstr("8 pieces"), HasSubstr("vocab_size is 7")));
  folder.write("vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\n");
  folder.write("tokenizer.json", R"({"added_tokens": [{"id": 7, "content": "<x>"}], "normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]}, "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4, "c": 5, "d": 6}}})");
  EXPECT_ERROR(load_bert(folder.path()), format, AllOf(HasSubstr("'<x>' has id 7"), HasSubstr("vocab_size is 7")));
}

}  // namespace
}  // namespace polyhead::models
