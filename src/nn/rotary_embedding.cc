#include "polyhead/nn/rotary_embedding.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/index.h"
#include "core/text.h"

namespace polyhead::nn {
namespace {

constexpr const char* kRotaryEmbedding = "RotaryEmbedding";
constexpr double kTurn = 2 * std::numbers::pi;

void require_config(const RotaryEmbeddingConfig& c) {
  const auto finite = [](const char* name, double value, double least) {
    require(std::isfinite(value) && value >= least, kRotaryEmbedding, ": ", name, " is ", value, "; it must be finite and at least ", least);
  };
  const auto positive = [](const char* name, double value) {
    require(std::isfinite(value) && value > 0, kRotaryEmbedding, ": ", name, " is ", value, "; it must be finite and above 0");
  };
  require(c.width >= 2 && c.width % 2 == 0, kRotaryEmbedding, ": width is ", c.width, "; it must be even and at least 2");
  require(std::isfinite(c.base) && c.base > 1, kRotaryEmbedding, ": base is ", c.base, "; it must be finite and above 1");
  finite("factor", c.factor, 1);
  finite("original_max_position_embeddings", c.original_max_position_embeddings, 0);
  positive("low_freq_factor", c.low_freq_factor), positive("high_freq_factor", c.high_freq_factor);
  positive("beta_fast", c.beta_fast), positive("beta_slow", c.beta_slow);
  if (c.attention_factor) positive("attention_factor", *c.attention_factor);
  finite("mscale", c.mscale, 0), finite("mscale_all_dim", c.mscale_all_dim, 0);
  require(c.scaling != RotaryScaling::none || c.factor == 1, kRotaryEmbedding, ": factor is ", c.factor, " without a scaling rule that uses it");
  const bool has_attention_factor = c.scaling == RotaryScaling::yarn || c.scaling == RotaryScaling::longrope;
  require(has_attention_factor || !c.attention_factor, kRotaryEmbedding, ": attention_factor is given, which only scaling yarn and longrope use");
  const RotaryEmbeddingConfig absent;
  const auto only_if = [&](bool used, const char* name, double RotaryEmbeddingConfig::*value, const char* users) {
    require(used || c.*value == absent.*value, kRotaryEmbedding, ": ", name, " is ", c.*value, ", which only scaling ", users, "; others need ", absent.*value);
  };
  const bool llama3 = c.scaling == RotaryScaling::llama3, yarn = c.scaling == RotaryScaling::yarn;
  only_if(llama3 || has_attention_factor, "original_max_position_embeddings", &RotaryEmbeddingConfig::original_max_position_embeddings, "llama3, yarn and longrope use");
  only_if(llama3, "low_freq_factor", &RotaryEmbeddingConfig::low_freq_factor, "llama3 uses");
  only_if(llama3, "high_freq_factor", &RotaryEmbeddingConfig::high_freq_factor, "llama3 uses");
  only_if(yarn, "beta_fast", &RotaryEmbeddingConfig::beta_fast, "yarn uses");
  only_if(yarn, "beta_slow", &RotaryEmbeddingConfig::beta_slow, "yarn uses");
  only_if(yarn, "mscale", &RotaryEmbeddingConfig::mscale, "yarn uses");
  only_if(yarn, "mscale_all_dim", &RotaryEmbeddingConfig::mscale_all_dim, "yarn uses");
  require(yarn || c.truncate, kRotaryEmbedding, ": truncate is false, which only scaling yarn uses; others need true");
  require((c.mscale == 0) == (c.mscale_all_dim == 0), kRotaryEmbedding, ": mscale is ", c.mscale, " and mscale_all_dim ", c.mscale_all_dim,
          "; the attention factor is computed from both, so give both or neither");
  require(!c.attention_factor || c.mscale == 0, kRotaryEmbedding, ": mscale is ", c.mscale, " beside attention_factor ", c.attention_factor.value_or(0),
          ", which takes the place of mscale and mscale_all_dim; give one of them");
  require(c.scaling != RotaryScaling::ntk || c.width > 2, kRotaryEmbedding,
          ": width is 2; scaling ntk needs at least 4, as it divides by width - 2");
  const bool by_length = llama3 || yarn;
  require(!by_length || c.original_max_position_embeddings > 0, kRotaryEmbedding, ": original_max_position_embeddings is ",
          c.original_max_position_embeddings, "; scaling llama3 and yarn need the length of the texts in training");
  const std::int64_t factors = c.scaling == RotaryScaling::longrope ? c.width / 2 : 0;
  require(std::ssize(c.factors) == factors, kRotaryEmbedding, ": factors has ", c.factors.size(), " numbers; scaling longrope needs width / 2 of them, other scalings need none: ", factors);
  for (const double factor : c.factors) positive("a factor of longrope", factor);
  require(c.scaling != RotaryScaling::longrope || c.attention_factor || c.factor == 1 || c.original_max_position_embeddings > 1, kRotaryEmbedding,
          ": original_max_position_embeddings is ", c.original_max_position_embeddings, "; scaling longrope needs it, above 1, or attention_factor");
  require(c.proportion >= 0 && c.proportion <= 1, kRotaryEmbedding, ": proportion is ", c.proportion, "; it must lie in [0,1]");
  require(c.scaling == RotaryScaling::proportional || c.proportion == 1, kRotaryEmbedding, ": proportion is given, which only scaling proportional uses");
  require(!llama3 || c.low_freq_factor < c.high_freq_factor, kRotaryEmbedding, ": low_freq_factor is ",
          c.low_freq_factor, " and high_freq_factor ", c.high_freq_factor, "; low must be below high");
  require(!yarn || c.beta_slow <= c.beta_fast, kRotaryEmbedding, ": beta_slow is ", c.beta_slow, " and beta_fast ",
          c.beta_fast, "; slow must not be above fast");
}

// docs/maths.md, eq. 11d.
void scale_as_llama3(const RotaryEmbeddingConfig& c, std::vector<double>& frequencies) {
  const double original = c.original_max_position_embeddings;
  for (double& f : frequencies) {
    const double turns = original * f / kTurn;  // the number of turns that the frequency makes in the original length
    const double kept = std::clamp((turns - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor), 0.0, 1.0);
    f = (1 - kept) * f / c.factor + kept * f;
  }
}

// docs/maths.md, eq. 11e.
void scale_as_yarn(const RotaryEmbeddingConfig& c, std::vector<double>& frequencies) {
  const double width = static_cast<double>(c.width);
  // Returns the index i, as a real number, of the frequency that makes `turns` turns in the original length.
  const auto index_of = [&](double turns) {
    return width * std::log(c.original_max_position_embeddings / (turns * kTurn)) / (2 * std::log(c.base));
  };
  double low = index_of(c.beta_fast), high = index_of(c.beta_slow);
  if (c.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, width - 1);
  if (low == high) high += 0.001;  // avoids 0/0, as the published code does
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double scaled = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = scaled * frequencies[i] / c.factor + (1 - scaled) * frequencies[i];
  }
}

// docs/maths.md, eq. 11f.
double yarn_attention_factor(const RotaryEmbeddingConfig& c) {
  if (c.attention_factor) return *c.attention_factor;
  const auto scale_of = [&](double mscale) { return c.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(c.factor) + 1; };
  if (c.mscale != 0 && c.mscale_all_dim != 0) return scale_of(c.mscale) / scale_of(c.mscale_all_dim);
  return scale_of(1);
}

}  // namespace

RotaryEmbedding::RotaryEmbedding(const RotaryEmbeddingConfig& config) : config_(config) {
  require_config(config);
  const double width = static_cast<double>(config.width);
  double base = config.base;
  if (config.scaling == RotaryScaling::ntk) base *= std::pow(config.factor, width / (width - 2));
  for (std::int64_t i = 0; i < config.width / 2; ++i) frequencies_.push_back(std::pow(base, -2 * static_cast<double>(i) / width));
  if (config.scaling == RotaryScaling::linear) {
    for (double& f : frequencies_) f /= config.factor;
  }
  if (config.scaling == RotaryScaling::longrope) {
    for (std::size_t i = 0; i < frequencies_.size(); ++i) frequencies_[i] /= config.factors[i];
    // docs/maths.md, eq. 11g.
    const double share = config.factor <= 1 ? 0 : std::log(config.factor) / std::log(config.original_max_position_embeddings);
    attention_factor_ = config.attention_factor.value_or(std::sqrt(1 + share));
  }
  if (config.scaling == RotaryScaling::proportional) {
    const double turning = std::floor(config.proportion * width / 2);
    for (std::size_t i = 0; i < frequencies_.size(); ++i) frequencies_[i] = static_cast<double>(i) < turning ? frequencies_[i] / config.factor : 0;
  }
  if (config.scaling == RotaryScaling::llama3) scale_as_llama3(config, frequencies_);
  if (config.scaling != RotaryScaling::yarn) return;
  scale_as_yarn(config, frequencies_);
  attention_factor_ = yarn_attention_factor(config);
}

RotaryTables RotaryEmbedding::tables(ConstTensorView positions, DType dtype) const {
  require(dtype == DType::f32 || dtype == DType::f64, kRotaryEmbedding, ": tables are float32 or float64, not ", dtype);
  require(positions && is_integer(positions.dtype()) && positions.rank() >= 1, kRotaryEmbedding, ": positions must be integers [*,T]");
  const Shape shape = appended(positions.shape(), {config_.width / 2});
  RotaryTables tables{Tensor::uninitialised(dtype, shape), Tensor::uninitialised(dtype, shape), config_.order, config_.width};
  const Tensor at = Tensor::copy_of(positions, DType::i64);
  const auto write = [&](auto* cos, auto* sin) {
    using T = std::remove_reference_t<decltype(*cos)>;
    for (const std::int64_t number : std::span(at.data<std::int64_t>(), static_cast<std::size_t>(at.numel()))) {
      const double position = static_cast<double>(number);
      for (const double f : frequencies_) {
        *cos++ = static_cast<T>(attention_factor_ * std::cos(position * f));
        *sin++ = static_cast<T>(attention_factor_ * std::sin(position * f));
      }
    }
  };
  dtype == DType::f64 ? write(tables.cos.data<double>(), tables.sin.data<double>())
                      : write(tables.cos.data<float>(), tables.sin.data<float>());
  return tables;
}

RotaryTables RotaryEmbedding::tables(std::int64_t first, std::int64_t count, DType dtype) const {
  return tables_from(ConstTensorView(&first, {}), count, dtype);
}

RotaryTables RotaryEmbedding::tables_from(ConstTensorView first, std::int64_t count, DType dtype) const {
  require(first && is_integer(first.dtype()), kRotaryEmbedding, ": first positions must be integers [*]");
  require(count >= 0, kRotaryEmbedding, ": count is ", count, "; it must not be negative");
  const Shape shape = appended(first.shape(), {count});
  Tensor positions = Tensor::uninitialised(DType::i64, shape);
  copy(first.unsqueeze(-1).expand(shape), positions);
  std::int64_t* const data = positions.data<std::int64_t>();
  for (std::int64_t i = 0; i < positions.numel(); ++i) {
    require(!__builtin_add_overflow(data[i], i % count, &data[i]), kRotaryEmbedding, ": position ", data[i], " + ", i % count,
            " exceeds 2^63 - 1");
  }
  return tables(positions, dtype);
}

}  // namespace polyhead::nn
