#include "polyhead/models/ablation.h"

#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "core/text.h"

namespace polyhead::models {
namespace {

// Restores a tensor in its destructor, also after an exception.
class Exchanged {
 public:
  Exchanged(Tensor* target, Tensor other) : target_(target), kept_(std::move(other)) { std::swap(*target_, kept_); }
  ~Exchanged() { std::swap(*target_, kept_); }
  Exchanged(const Exchanged&) = delete;
  Exchanged& operator=(const Exchanged&) = delete;

 private:
  Tensor* target_;
  Tensor kept_;
};

// While this object lives, a layer that shares its parameters has a copy of them, so that a change of the parameters affects only this layer.
class OwnParameters {
 public:
  OwnParameters(BertEncoder* encoder, std::int64_t layer) : encoder_(encoder), layer_(static_cast<std::size_t>(layer)) {
    if (encoder->config.shared_layers.empty()) return;
    shared_ = static_cast<std::int64_t>(encoder->parameters_of(layer));
    encoder->layers.push_back(EncoderLayer(encoder->layers[static_cast<std::size_t>(shared_)]));
    encoder->config.shared_layers[layer_] = std::ssize(encoder->layers) - 1;
  }
  ~OwnParameters() {
    if (shared_ < 0) return;
    encoder_->config.shared_layers[layer_] = shared_;
    encoder_->layers.pop_back();
  }
  OwnParameters(const OwnParameters&) = delete;
  OwnParameters& operator=(const OwnParameters&) = delete;

 private:
  BertEncoder* encoder_;
  std::size_t layer_;
  std::int64_t shared_ = -1;
};

std::vector<double> unit(const Tensor& embedding) {
  const Tensor wide = Tensor::copy_of(embedding, DType::f64);
  std::vector<double> values(wide.data<double>(), wide.data<double>() + wide.numel());
  const double norm = std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
  for (double& value : values) value /= norm > 0 ? norm : 1;
  return values;
}

}  // namespace

double change_without_head(SentenceModel& model, const SentenceResult& with, std::int64_t layer, std::int64_t head, const SentenceOptions& options) {
  const BertConfig& config = model.encoder.config;
  require(layer >= 0 && layer < config.layers && head >= 0 && head < config.heads, "change_without_head: there is no head ", layer, ".", head, "; the model has the layers 0 to ",
          config.layers - 1, " and the heads 0 to ", config.heads - 1);
  if (!model.other_embedding.empty())
    fail(ErrorCode::unsupported, "change_without_head compares embeddings that are the mean over the tokens, and this model has another: ", model.other_embedding);
  const OwnParameters own(&model.encoder, layer);
  nn::MultiHeadAttention& attention = model.encoder.layers[model.encoder.parameters_of(layer)].attention;
  const std::int64_t width = attention.config.value_head_width;
  Tensor without = Tensor::copy_of(attention.output.weight);
  fill(without.view().slice(1, head * width, (head + 1) * width), 0);
  const Exchanged exchanged(&attention.output.weight, std::move(without));
  SentenceOptions of_run = options;
  of_run.attentions = of_run.all_hidden = of_run.head_vectors = false;
  const SentenceResult result = model.run(with.tokens, of_run);
  // For unit vectors a and b, 1 - <a, b> = |a - b|^2 / 2, which is accurate even if it is small.
  const std::vector<double> before = unit(with.embedding), after = unit(result.embedding);
  double change = 0;
  for (std::size_t i = 0; i < before.size(); ++i) change += (before[i] - after[i]) * (before[i] - after[i]) / 2;
  return change;
}

}  // namespace polyhead::models
