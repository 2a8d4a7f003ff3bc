#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "io/int8_rows.h"
#include "models/encoder_families.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/models/bert.h"

namespace polyhead::models {
namespace {

// Takes parameters from a file that names them as `transformers` does.
class BertCheckpoint {
 public:
  BertCheckpoint(const std::filesystem::path& path, const EncoderFamily& family) : file_(io::open_tensors(path)), words_(cat(family.tensors.words, ".weight")) {
    io::expand_int8_rows(file_);
    const io::NamedTensor* words = nullptr;
    for (const io::NamedTensor& tensor : file_.tensors) {
      const std::string_view name = tensor.name;
      if (!name.ends_with(words_) || (name.size() > words_.size() && name[name.size() - words_.size() - 1] != '.')) continue;
      if (words != nullptr)
        fail(ErrorCode::format, file_name(), ": holds two encoders, '", words->name, "' and '", name, "'; one is needed");
      words = &tensor;
    }
    if (words == nullptr)
      fail(ErrorCode::format, file_name(), ": is not a ", family.model_type == "bert" ? "BERT" : family.model_type, " encoder: none of its ", file_.tensors.size(), " tensors is named '", words_,
           "', with or without a prefix such as '", family.model_type, ".'");
    prefix_ = words->name.substr(0, words->name.size() - words_.size());
    dtype_ = words->tensor.dtype();
    if (!is_floating(dtype_)) fail(ErrorCode::format, file_name(), ": '", words->name, "' is ", dtype_, "; a floating dtype is needed");
  }

  DType dtype() const { return dtype_; }
  const Tensor* find(const std::string& name) const { return file_.find(prefix_ + name); }

  // Returns a tensor on the file's memory. Error if it is missing or has another shape or dtype.
  Tensor take(const std::string& name, const Shape& shape) {
    Tensor* tensor = file_.find(prefix_ + name);
    if (tensor == nullptr) fail(ErrorCode::format, file_name(), ": has no tensor '", prefix_, name, "', which config.json implies");
    if (tensor->shape() != shape)
      fail(ErrorCode::format, file_name(), ": '", prefix_, name, "' is ", tensor->shape(), "; config.json makes it ", shape);
    if (tensor->dtype() != dtype_)
      fail(ErrorCode::format, file_name(), ": '", prefix_, name, "' is ", tensor->dtype(), "; it must be ", dtype_, ", as '", prefix_, words_, "'");
    return Tensor::share(tensor->view(), tensor->owner());
  }

  nn::Linear linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias = true) {
    Tensor weight = take(name + ".weight", {out, in});
    return nn::Linear(std::move(weight), bias ? take(name + ".bias", {out}) : Tensor());
  }

  // Checkpoints converted from TensorFlow call the weight gamma and the bias beta.
  nn::LayerNorm norm(const std::string& name, std::int64_t width, const BertConfig& config) {
    const bool old = find(name + ".weight") == nullptr && find(name + ".gamma") != nullptr;
    Tensor weight = take(name + (old ? ".gamma" : ".weight"), {width});
    return nn::LayerNorm(std::move(weight), config.norm_bias ? take(name + (old ? ".beta" : ".bias"), {width}) : Tensor(), config.epsilon);
  }

  std::string file_name() const { return file_.path.filename().string(); }
  const std::string& prefix() const { return prefix_; }

 private:
  io::TensorFile file_;
  std::string words_, prefix_;
  DType dtype_ = DType::f32;
};

// Returns the rows [first, last) of a linear layer, on its memory.
nn::Linear rows_of(nn::Linear& whole, std::int64_t first, std::int64_t last) {
  const auto slice = [&](Tensor& tensor) { return tensor ? Tensor::share(tensor.view().slice(0, first, last), tensor.owner()) : Tensor(); };
  return {slice(whole.weight), slice(whole.bias)};
}

EncoderLayer load_layer(BertCheckpoint& file, const EncoderFamily& family, const std::string& prefix, const BertConfig& config, bool has_attention_norm) {
  const EncoderTensors& names = family.tensors;
  const std::int64_t width = config.width;
  const auto named = [&](std::string_view name) { return cat(prefix, name); };
  EncoderLayer layer;
  nn::Linear q, k, v;
  if (names.k.empty()) {
    nn::Linear packed = file.linear(named(names.q), 3 * width, width, config.bias);
    q = rows_of(packed, 0, width), k = rows_of(packed, width, 2 * width), v = rows_of(packed, 2 * width, 3 * width);
  } else {
    q = file.linear(named(names.q), width, width, config.bias);
    k = file.linear(named(names.k), width, width, config.bias);
    v = file.linear(named(names.v), width, width, config.bias);
  }
  nn::Linear output = file.linear(named(names.attention_output), width, width, config.bias);
  layer.attention = nn::make_attention({.query_width = width, .heads = config.heads, .bias = config.bias, .output_bias = config.bias, .dtype = config.dtype}, std::move(q), std::move(k),
                                       std::move(v), std::move(output));
  if (has_attention_norm) layer.attention_norm = file.norm(named(names.attention_norm), width, config);
  nn::Linear hidden, gate;
  if (config.gated) {
    nn::Linear packed = file.linear(named(names.hidden), 2 * config.hidden_width, width, config.feed_forward_bias);
    gate = rows_of(packed, 0, config.hidden_width), hidden = rows_of(packed, config.hidden_width, 2 * config.hidden_width);
  } else {
    hidden = file.linear(named(names.hidden), config.hidden_width, width, config.feed_forward_bias);
  }
  nn::Linear feed_forward_output = file.linear(named(names.feed_forward_output), width, config.hidden_width, config.feed_forward_bias);
  layer.feed_forward = nn::FeedForward(std::move(hidden), std::move(feed_forward_output), config.activation, std::move(gate));
  layer.feed_forward_norm = file.norm(named(names.feed_forward_norm), width, config);
  layer.norm_position = config.norm_position;
  return layer;
}

// Returns the prefix of a layer's tensors: "encoder.layer.3.", or in groups "encoder.albert_layer_groups.0.albert_layers.3.".
std::string layer_prefix(const EncoderFamily& family, std::int64_t index, std::int64_t of_a_group) {
  if (!family.grouped_layers) return cat(family.tensors.layer, index, ".");
  return cat(family.tensors.layer, index / of_a_group, ".albert_layers.", index % of_a_group, ".");
}

// ESM's files may hold the frequencies of the rotary positions, rounded as in training. transformers uses the frequencies of the file, so polyhead reads them.
void read_frequencies(const BertCheckpoint& file, BertConfig& config) {
  const Tensor* stored = nullptr;
  std::string name;
  // transformers 5.24 writes the name with an asterisk.
  for (const char* known : {"rotary_embeddings.inv_freq", "encoder.layer.*.attention.self.rotary_embeddings.inv_freq", "encoder.layer.0.attention.self.rotary_embeddings.inv_freq"})
    if (stored == nullptr) stored = file.find(name = known);
  if (stored == nullptr) return;
  nn::RotaryEmbeddingConfig& rotary = *config.rotary;
  if (stored->shape() != Shape{rotary.width / 2} || !is_floating(stored->dtype()))
    fail(ErrorCode::format, file.file_name(), ": '", file.prefix(), name, "' is ", stored->dtype(), " ", stored->shape(), "; it must be floating [", rotary.width / 2, "]");
  const Tensor values = Tensor::copy_of(*stored, DType::f64);
  const nn::RotaryEmbedding exact(rotary);
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const double frequency = values.data<double>()[i];
    if (!(frequency > 0) || !std::isfinite(frequency)) fail(ErrorCode::format, file.file_name(), ": '", file.prefix(), name, "' has the value ", frequency, "; frequencies must be above 0 and finite");
    rotary.factors.push_back(exact.frequencies()[static_cast<std::size_t>(i)] / frequency);
  }
  rotary.scaling = nn::RotaryScaling::longrope;  // longrope divides the frequencies by `factors`
  rotary.attention_factor = 1;
}

}  // namespace

BertEncoder load_bert_encoder(const std::filesystem::path& directory) {
  BertEncoder encoder;
  encoder.config = read_bert_config(directory / "config.json");
  BertConfig& config = encoder.config;
  const EncoderFamily& family = find_encoder_family("config.json", config.family);
  const EncoderTensors& names = family.tensors;
  BertCheckpoint file(directory, family);
  config.dtype = file.dtype();
  const std::int64_t width = config.embedding_width != 0 ? config.embedding_width : config.width;
  const auto embedding = [&](std::string_view name, std::int64_t count) { return nn::Embedding(file.take(cat(name, ".weight"), {count, width})); };
  encoder.words = embedding(names.words, config.vocabulary);
  if (!config.rotary) encoder.positions = embedding(names.positions, config.positions);
  if (config.segments > 0) encoder.segments = embedding(names.segments, config.segments);
  if (config.embedding_norm) encoder.embedding_norm = file.norm(std::string(names.embedding_norm), width, config);
  if (config.embedding_width != 0) encoder.embedding_projection = file.linear(std::string(names.embedding_projection), config.width, width);
  if (config.relative_buckets > 0) encoder.relative_bias = file.take(cat(names.relative_bias, ".weight"), {config.relative_buckets, config.heads});
  const std::int64_t own_layers = config.shared_layers.empty() ? config.layers : config.shared_layers.back() + 1;
  for (std::int64_t i = 0; i < own_layers; ++i)
    encoder.layers.push_back(load_layer(file, family, layer_prefix(family, i, config.layers_of_a_group), config, config.first_norm || i > 0));
  if (!names.final_norm.empty()) encoder.final_norm = file.norm(std::string(names.final_norm), config.width, config);
  if (family.token_dropout && config.rotary) read_frequencies(file, config);
  return encoder;
}

}  // namespace polyhead::models
