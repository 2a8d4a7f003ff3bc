#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>

#include "core/text.h"
#include "models/minilm_test_data.h"
#include "models/test_error_matcher.h"
#include "models/test_model_folder.h"
#include "polyhead/models/sentence_model.h"
#include "support/compare.h"
#include "support/random.h"

namespace polyhead::models {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Tensor hidden_of(const BertEncoder& encoder) {
  const Tensor ids = Tensor::of<std::int64_t>({3}, {1, 6, 2});
  Tensor hidden(encoder.config.dtype, {3, encoder.config.width});
  encoder.forward({.ids = ids}, {.hidden = hidden});
  return hidden;
}

BertEncoder random_encoder(BertConfig config = small_bert()) {
  BertEncoder encoder(config, 3);
  test::Random random(3);
  encoder.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor); });
  return encoder;
}

struct Folder : ModelFolder {
  Folder() { write_json("config.json", config_json(small_bert())); }
  void save(const std::vector<io::NamedTensor>& tensors) const { io::save_tensors(path() / "model.safetensors", tensors); }
};

TEST(LoadBertEncoder, ComputesWhatTheSavedOneDid) {
  const BertEncoder encoder = random_encoder();
  for (const std::string prefix : {"", "bert.", "some.prefix."}) {
    SCOPED_TRACE(prefix);
    Folder folder;
    auto tensors = hf_tensors(encoder, prefix);
    tensors.push_back({prefix + "pooler.dense.weight", Tensor(DType::f32, {6, 6})});
    tensors.push_back({"cls.predictions.bias", Tensor(DType::f32, {7})});
    folder.save(tensors);
    EXPECT_TRUE(test::same_bits(hidden_of(load_bert_encoder(folder.path())), hidden_of(encoder)));
  }
}

// Elements of matrices change by at most half a scale, vectors keep their bits, and tensors that the encoder does not read are left out.
TEST(QuantizeBert, QuantizedRowsAreCloseAndOtherTensorsAreUnchanged) {
  const BertEncoder encoder = random_encoder();
  Folder folder;
  ModelFolder small;
  folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n");
  auto tensors = hf_tensors(encoder, "bert.");
  tensors.push_back({"bert.pooler.dense.weight", Tensor(DType::f32, {6, 6})});
  tensors.push_back({"cls.predictions.bias", Tensor(DType::f32, {7})});
  folder.save(tensors);
  quantize_bert(folder.path(), small.path());
  const io::TensorFile stored = io::open_tensors(small.path());
  for (const io::NamedTensor& tensor : stored.tensors) EXPECT_FALSE(tensor.name.find("pooler") != std::string::npos || tensor.name.starts_with("cls.")) << tensor.name;
  const SentenceModel rounded = load_bert(small.path());
  EXPECT_EQ(rounded.tokenizer.encode("a b").ids, load_bert(folder.path()).tokenizer.encode("a b").ids);
  std::map<std::string, Tensor> values;
  rounded.encoder.visit([&](const std::string& name, const Tensor& tensor) { values.emplace(name, Tensor::copy_of(tensor)); });
  encoder.visit([&](const std::string& name, const Tensor& tensor) {
    const Tensor& other = values.at(name);
    ASSERT_EQ(other.shape(), tensor.shape()) << name;
    if (tensor.shape().size() == 1) {
      EXPECT_TRUE(test::same_bits(other, tensor)) << name;
      return;
    }
    // Each row of a matrix has its own scale, even with fewer than 16 values. Only tensors of three or more dimensions join rows until 16 values share a scale.
    const std::int64_t width = tensor.extent(-1);
    for (std::int64_t row = 0; row < tensor.numel() / width; ++row) {
      const float* const x = tensor.data<float>() + row * width;
      float largest = 0;
      for (std::int64_t i = 0; i < width; ++i) largest = std::max(largest, std::abs(x[i]));
      for (std::int64_t i = 0; i < width; ++i) EXPECT_NEAR(other.data<float>()[row * width + i], x[i], largest / 127 * 0.5002F) << name << ' ' << row << ' ' << i;
    }
  });
  const ModelFolder smaller;
  EXPECT_ERROR(quantize_bert(small.path(), smaller.path()), unsupported, HasSubstr("is quantised already"));
}

TEST(QuantizeBert, ExistingFilesAreNotOverwritten) {
  Folder folder;
  folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n");
  folder.save(hf_tensors(random_encoder()));
  const auto contents = [&](const std::filesystem::path& path) { return std::string(std::istreambuf_iterator<char>(std::ifstream(path, std::ios::binary).rdbuf()), {}); };
  const std::string parameters = contents(folder.path() / "model.safetensors");
  EXPECT_ERROR(quantize_bert(folder.path(), folder.path()), invalid_argument, HasSubstr("is not an empty folder"));
  EXPECT_EQ(contents(folder.path() / "model.safetensors"), parameters);
  ModelFolder other;
  other.write("tokenizer.json", "{}");
  EXPECT_ERROR(quantize_bert(folder.path(), other.path()), invalid_argument, HasSubstr("is not an empty folder"));
  EXPECT_FALSE(std::filesystem::exists(other.path() / "model.safetensors"));
  EXPECT_ERROR(quantize_bert(folder.path(), other.path() / "tokenizer.json"), invalid_argument, HasSubstr("is not an empty folder"));
  const std::filesystem::path fresh = other.path() / "new" / "folder";
  quantize_bert(folder.path(), fresh);
  EXPECT_EQ(quantized_bert_files(fresh), (std::vector<std::string>{"model.safetensors", "vocab.txt", "config.json"}));
  other.write("tokenizer_config.json", "{}");
  EXPECT_EQ(quantized_bert_files(other.path()), (std::vector<std::string>{"model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"}));
}

TEST(QuantizeBert, ScalesThatDoNotFitAreRefused) {
  const BertEncoder encoder = random_encoder();
  Folder folder;
  auto tensors = hf_tensors(encoder);
  const auto words = std::ranges::find(tensors, "embeddings.word_embeddings.weight", &io::NamedTensor::name);
  words->tensor = Tensor(DType::i8, {7, 6});
  tensors.push_back({"embeddings.word_embeddings.weight.scale", Tensor(DType::f32, {6})});
  folder.save(tensors);
  EXPECT_THROW(load_bert_encoder(folder.path()), Error);
  tensors.back().tensor = Tensor(DType::f32, {7});
  folder.save(tensors);
  load_bert_encoder(folder.path());
  tensors.back().tensor.data<float>()[3] = std::numeric_limits<float>::infinity();
  folder.save(tensors);
  EXPECT_THROW(load_bert_encoder(folder.path()), Error);
}

TEST(LoadBertEncoder, NormsMayBeNamedAsInTensorFlow) {
  const BertEncoder encoder = random_encoder();
  Folder folder;
  auto tensors = hf_tensors(encoder);
  for (auto& [name, tensor] : tensors) {
    const auto norm = name.find("LayerNorm.");
    if (norm != std::string::npos) name.replace(norm + 10, std::string::npos, name.ends_with("weight") ? "gamma" : "beta");
  }
  folder.save(tensors);
  EXPECT_TRUE(test::same_bits(hidden_of(load_bert_encoder(folder.path())), hidden_of(encoder)));
}

TEST(LoadBertEncoder, KeepsTheDtypeOfTheFile) {
  for (const DType dtype : {DType::f64, DType::bf16, DType::f16}) {
    BertConfig config = small_bert();
    config.dtype = dtype;
    const BertEncoder encoder = random_encoder(config);
    Folder folder;
    folder.save(hf_tensors(encoder));
    const BertEncoder loaded = load_bert_encoder(folder.path());
    EXPECT_EQ(loaded.config.dtype, dtype);
    EXPECT_TRUE(test::same_bits(hidden_of(loaded), hidden_of(encoder)));
  }
}

// Returns the path of the file that this process has mapped at an address.
std::string mapped_file(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    const auto dash = line.find('-');
    if (wanted >= std::stoull(line.substr(0, dash), nullptr, 16) && wanted < std::stoull(line.substr(dash + 1), nullptr, 16)) {
      const auto path = line.find('/');
      return path == std::string::npos ? "" : line.substr(path);
    }
  }
  return "";
}

TEST(LoadBertEncoder, EveryParameterStaysAViewOfTheMappedFile) {
  const BertEncoder encoder = load_bert_encoder(minilm_directory());
  int count = 0;
  encoder.visit([&](const std::string& name, const Tensor& tensor) {
    ++count;
    EXPECT_THAT(mapped_file(tensor.view().data()), HasSubstr("model.safetensors")) << name;
  });
  EXPECT_EQ(count, 3 + 2 + 6 * 16);
}

TEST(LoadBertEncoder, FilesThatDoNotFitTheConfigurationAreErrorsThatNameTheTensor) {
  const BertEncoder encoder = random_encoder();
  const auto with = [&](auto change) {
    Folder folder;
    auto tensors = hf_tensors(encoder, "bert.");
    change(tensors);
    folder.save(tensors);
    load_bert_encoder(folder.path());
  };
  const auto tensor = [](std::vector<io::NamedTensor>& tensors, std::string_view name) {
    return std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  };
  EXPECT_ERROR(with([&](auto& t) { t.erase(tensor(t, "bert.encoder.layer.1.output.dense.bias")); }), format,
               HasSubstr("has no tensor 'bert.encoder.layer.1.output.dense.bias'"));
  EXPECT_ERROR(with([&](auto& t) {
                 tensor(t, "bert.embeddings.position_embeddings.weight")->tensor = Tensor(DType::f32, {4, 6});
               }),
               format, HasSubstr("'bert.embeddings.position_embeddings.weight' is [4,6]; config.json makes it [5,6]"));
  EXPECT_ERROR(with([&](auto& t) { tensor(t, "bert.embeddings.LayerNorm.bias")->tensor = Tensor(DType::f64, {6}); }), format,
               HasSubstr("'bert.embeddings.LayerNorm.bias' is float64; it must be float32"));
  EXPECT_ERROR(with([&](auto& t) {
                 tensor(t, "bert.embeddings.word_embeddings.weight")->tensor = Tensor(DType::i64, {7, 6});
               }),
               format, HasSubstr("is int64; a floating dtype is needed"));
  EXPECT_ERROR(with([&](auto& t) {
                 t.push_back({"other.embeddings.word_embeddings.weight", Tensor(DType::f32, {1})});
               }),
               format, HasSubstr("holds two encoders"));
  EXPECT_ERROR(with([&](auto& t) { t.clear(); }), format, HasSubstr("is not a BERT encoder"));
}

TEST(LoadBertEncoder, TensorsOfAnEncoderThatHaveNoPlaceAreErrors) {
  const BertEncoder encoder = random_encoder();
  for (const std::string prefix : {"", "bert."}) {
    const auto load_with = [&](const std::string& name) {
      Folder folder;
      auto tensors = hf_tensors(encoder, prefix);
      tensors.push_back({prefix + name, Tensor(DType::f32, {6})});
      folder.save(tensors);
      load_bert_encoder(folder.path());
    };
    for (const char* name : {"encoder.layer.2.output.dense.bias", "encoder.layer.0.attention.self.query.lora_A.weight", "encoder.relative_attention_bias.weight", "embeddings.norm.bias", "layers.0.mlp.Wi.bias",
                             "transformer.layer.0.ffn.lin1.bias", "embeddings_project.bias", "final_norm.weight"})
      EXPECT_ERROR(load_with(name), format, HasSubstr(cat("'", prefix, name, "' [6] has no place in a model of the type bert with this config.json")));
    for (const char* name : {"embeddings.position_ids", "embeddings.token_type_ids", "encoder.layer.0.attention.rotary_emb.inv_freq", "pooler.dense.weight", "pooler.weight", "cls.predictions.bias",
                             "classifier.weight", "lm_head.layer_norm.weight", "predictions.dense.weight", "qa_outputs.weight", "vocab_transform.weight", "discriminator_predictions.dense.bias", "head.norm.weight",
                             "decoder.bias", "contact_head.regression.weight"})
      EXPECT_NO_THROW(load_with(name)) << name;
  }
}

TEST(LoadBertEncoder, MissingOrTruncatedFilesAreErrors) {
  ModelFolder empty;
  EXPECT_ERROR(load_bert_encoder(empty.path()), io, HasSubstr("config.json"));
  Folder folder;
  EXPECT_ERROR(load_bert_encoder(folder.path()), io, HasSubstr("model.safetensors"));
  folder.save(hf_tensors(random_encoder()));
  const auto config = folder.path() / "config.json", file = folder.path() / "model.safetensors";
  const auto length = std::filesystem::file_size(config);
  std::filesystem::resize_file(config, length + 1);  // resize_file() appends a byte of value 0
  EXPECT_ERROR(load_bert_encoder(folder.path()), format, HasSubstr(cat("config.json is not JSON at its byte ", length + 1)));
  std::filesystem::resize_file(config, length);
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  EXPECT_ERROR(load_bert_encoder(folder.path()), format, HasSubstr("model.safetensors"));
  std::filesystem::resize_file(config, 5);
  EXPECT_ERROR(load_bert_encoder(folder.path()), format, HasSubstr("config.json is not JSON at its byte 6"));
}

TEST(ReadBertConfig, ReadsEveryField) {
  const BertConfig config = read_bert_config(minilm_directory() / "config.json");
  EXPECT_EQ(config.vocabulary, 30522);
  EXPECT_EQ(config.positions, 512);
  EXPECT_EQ(config.segments, 2);
  EXPECT_EQ(config.width, 384);
  EXPECT_EQ(config.layers, 6);
  EXPECT_EQ(config.heads, 12);
  EXPECT_EQ(config.hidden_width, 1536);
  EXPECT_EQ(config.activation, nn::Activation::gelu);
  EXPECT_EQ(config.epsilon, 1e-12);
}

TEST(ReadBertConfig, MalformedConfigurationsAreErrorsThatNameTheKey) {
  const auto read = [](auto change) {
    ModelFolder folder;
    json config = config_json(small_bert());
    change(config);
    folder.write_json("config.json", config);
    return read_bert_config(folder.path() / "config.json");
  };
  for (const char* key : {"vocab_size", "max_position_embeddings", "type_vocab_size", "hidden_size", "num_hidden_layers",
                          "num_attention_heads", "intermediate_size"}) {
    EXPECT_ERROR(read([&](json& c) { c.erase(key); }), format, HasSubstr(std::string("config.json: ") + key + " is missing"));
    EXPECT_ERROR(read([&](json& c) { c[key] = nullptr; }), format, HasSubstr("is missing"));
    EXPECT_ERROR(read([&](json& c) { c[key] = "6"; }), format, HasSubstr("is \"6\"; an integer below 2^63 is needed"));
    EXPECT_ERROR(read([&](json& c) { c[key] = 6.5; }), format, HasSubstr("is a number that is not a 64-bit integer; an integer below 2^63 is needed"));
    EXPECT_ERROR(read([&](json& c) { c[key] = -6; }), format, HasSubstr("is -6"));
    EXPECT_ERROR(read([&](json& c) { c[key] = std::uint64_t{1} << 63; }), format, HasSubstr(key));
    EXPECT_ERROR(read([&](json& c) { c[key] = std::uint64_t{1} << 40; }), format, HasSubstr("it must be in"));
  }
  EXPECT_ERROR(read([](json& c) { c["num_attention_heads"] = 4; }), format,
               HasSubstr("num_attention_heads is 4; it must divide hidden_size = 6"));
  EXPECT_ERROR(read([](json& c) { c["hidden_act"] = "gelu_fast"; }), unsupported, HasSubstr("hidden_act is 'gelu_fast'"));
  EXPECT_ERROR(read([](json& c) { c["hidden_act"] = 3; }), format, HasSubstr("a string is needed"));
  EXPECT_ERROR(read([](json& c) { c["layer_norm_eps"] = "small"; }), format, HasSubstr("a number is needed"));
  EXPECT_ERROR(read([](json& c) { c["layer_norm_eps"] = 0; }), format, HasSubstr("must be above 0"));
  EXPECT_ERROR(read([](json& c) { c["model_type"] = "deberta"; }), unsupported, HasSubstr("model_type is 'deberta'"));
  EXPECT_ERROR(read([](json& c) { c["position_embedding_type"] = "relative_key"; }), unsupported, HasSubstr("relative_key"));
  EXPECT_ERROR(read([](json& c) { c["is_decoder"] = true; }), unsupported, HasSubstr("is_decoder"));
  EXPECT_ERROR(read([](json& c) { c = json::array(); }), format, HasSubstr("an object is needed"));
  EXPECT_EQ(read([](json& c) { c["hidden_act"] = "gelu_new"; }).activation, nn::Activation::gelu_tanh);
}

}  // namespace
}  // namespace polyhead::models
