#include <string>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/models/bert.h"

namespace polyhead::models {
namespace {

constexpr std::string_view kWords = "embeddings.word_embeddings.weight";

// A file whose parameters are named as in `transformers`.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& path) : file_(io::open_tensors(path)) {
    const io::NamedTensor* words = nullptr;
    for (const io::NamedTensor& tensor : file_.tensors) {
      const std::string_view name = tensor.name;
      if (!name.ends_with(kWords) || (name.size() > kWords.size() && name[name.size() - kWords.size() - 1] != '.')) continue;
      if (words != nullptr)
        fail(ErrorCode::format, file_name(), ": holds two encoders, '", words->name, "' and '", name, "'; one is needed");
      words = &tensor;
    }
    if (words == nullptr)
      fail(ErrorCode::format, file_name(), ": is not a BERT encoder: none of its ", file_.tensors.size(), " tensors is named '", kWords,
           "', with or without a prefix such as 'bert.'");
    prefix_ = words->name.substr(0, words->name.size() - kWords.size());
    dtype_ = words->tensor.dtype();
    if (!is_floating(dtype_)) fail(ErrorCode::format, file_name(), ": '", words->name, "' is ", dtype_, "; a floating dtype is needed");
  }

  DType dtype() const { return dtype_; }

  // Moves a tensor out of file_.tensors; it still shares the file's memory. Error if it is missing or has another shape or dtype.
  Tensor take(const std::string& name, const Shape& shape) {
    Tensor* tensor = find(name);
    if (tensor == nullptr) fail(ErrorCode::format, file_name(), ": has no tensor '", prefix_, name, "', which config.json implies");
    if (tensor->shape() != shape)
      fail(ErrorCode::format, file_name(), ": '", prefix_, name, "' is ", tensor->shape(), "; config.json makes it ", shape);
    if (tensor->dtype() != dtype_)
      fail(ErrorCode::format, file_name(), ": '", prefix_, name, "' is ", tensor->dtype(), "; it must be ", dtype_, ", as '", prefix_,
           kWords, "'");
    return std::move(*tensor);
  }

  nn::Linear linear(const std::string& name, std::int64_t out, std::int64_t in) {
    Tensor weight = take(name + ".weight", {out, in});
    return nn::Linear(std::move(weight), take(name + ".bias", {out}));
  }

  // Checkpoints converted from TensorFlow call the weight gamma and the bias beta.
  nn::LayerNorm norm(const std::string& name, const BertConfig& config) {
    const bool old = find(name + ".weight") == nullptr && find(name + ".gamma") != nullptr;
    Tensor weight = take(name + (old ? ".gamma" : ".weight"), {config.width});
    return nn::LayerNorm(std::move(weight), take(name + (old ? ".beta" : ".bias"), {config.width}), config.epsilon);
  }

 private:
  std::string file_name() const { return file_.path.filename().string(); }
  Tensor* find(const std::string& name) { return file_.find(prefix_ + name); }

  io::TensorFile file_;
  std::string prefix_;
  DType dtype_ = DType::f32;
};

EncoderLayer load_layer(Checkpoint& file, const std::string& prefix, const BertConfig& config) {
  const std::int64_t width = config.width;
  EncoderLayer layer;
  nn::Linear q = file.linear(prefix + "attention.self.query", width, width);
  nn::Linear k = file.linear(prefix + "attention.self.key", width, width);
  nn::Linear v = file.linear(prefix + "attention.self.value", width, width);
  nn::Linear output = file.linear(prefix + "attention.output.dense", width, width);
  layer.attention = nn::make_attention({.query_width = width, .heads = config.heads, .dtype = config.dtype}, std::move(q), std::move(k),
                                       std::move(v), std::move(output));
  layer.attention_norm = file.norm(prefix + "attention.output.LayerNorm", config);
  nn::Linear hidden = file.linear(prefix + "intermediate.dense", config.hidden_width, width);
  layer.feed_forward =
      nn::FeedForward(std::move(hidden), file.linear(prefix + "output.dense", width, config.hidden_width), config.activation);
  layer.feed_forward_norm = file.norm(prefix + "output.LayerNorm", config);
  return layer;
}

}  // namespace

BertEncoder load_bert_encoder(const std::filesystem::path& directory) {
  BertEncoder encoder;
  encoder.config = read_bert_config(directory / "config.json");
  BertConfig& config = encoder.config;
  Checkpoint file(directory);
  config.dtype = file.dtype();
  encoder.words = nn::Embedding(file.take(std::string(kWords), {config.vocabulary, config.width}));
  encoder.positions = nn::Embedding(file.take("embeddings.position_embeddings.weight", {config.positions, config.width}));
  encoder.segments = nn::Embedding(file.take("embeddings.token_type_embeddings.weight", {config.segments, config.width}));
  encoder.embedding_norm = file.norm("embeddings.LayerNorm", config);
  for (std::int64_t i = 0; i < config.layers; ++i) encoder.layers.push_back(load_layer(file, cat("encoder.layer.", i, "."), config));
  return encoder;
}

}  // namespace polyhead::models
