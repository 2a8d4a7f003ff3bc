// Makes the tables of nn::Rotary from positions: angle = position x frequency, with the frequencies that models are trained with (Su et al.
// 2021, RoFormer, section 3.2.2) and the rules that stretch them to longer texts. Use it for models whose config.json has "rope_theta" or "rope_scaling"; the
// members are named like the keys of these configs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "polyhead/nn/rotary.h"
#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// How the frequencies are changed for longer texts (docs/maths.md, eq. 11b to 11h). Without scaling, frequency i of R/2 is f[i] = base^(-2i/R).
enum class RotaryScaling : std::uint8_t {
  none,
  linear,  // f / factor: position interpolation (Chen et al. 2023, eq. 4)
  ntk,     // base grows to base factor^(R/(R-2)), so that the lowest frequency is that of `linear` ("NTK-aware", Peng et al. 2023, eq. 16)
  llama3,  // f / factor for long wavelengths, f for short ones, and a blend of f and f / factor between them (Llama 3.1, 2024)
  // A blend of f and f / factor, chosen by the number of turns in the original length. cos and sin are multiplied by an attention factor (Peng et al. 2023,
  // YaRN, eq. 17-22).
  yarn,
  longrope,      // f[i] / factors[i]; cos and sin are multiplied by an attention factor (Ding et al. 2024, LongRoPE; Phi-3)
  proportional,  // f / factor for the first `proportion` of the feature pairs; the other pairs are not rotated (Gemma 4)
};

// The settings of rotary positions. A member that the scaling rule does not use must keep its default, else Error.
struct RotaryEmbeddingConfig {
  std::int64_t width = 0;  // R, the number of features of each head that are rotated; even, at least 2
  double base = 10000;     // theta
  RotaryOrder order = RotaryOrder::halves;
  RotaryScaling scaling = RotaryScaling::none;
  double factor = 1;                            // new length / original length of the texts, at least 1; RotaryScaling::none does not use it
  double original_max_position_embeddings = 0;  // length of the texts in training; llama3 and yarn require it, and so does longrope without attention_factor
  // llama3: wavelengths above original length / low_freq_factor get f / factor, those below original length / high_freq_factor keep f
  double low_freq_factor = 1,
         high_freq_factor = 4;
  // yarn: frequencies that make at least beta_fast turns in the original length stay f; those that make fewer than beta_slow turns become f / factor
  double beta_fast = 32, beta_slow = 1;
  // yarn, longrope: a factor of cos and sin. Absent: computed from `factor` and mscale, mscale_all_dim or the original length.
  std::optional<double> attention_factor{};
  // yarn in DeepSeek's models: the attention factor is computed from these two numbers. Both 0: not used; they must be 0 with attention_factor.
  double mscale = 0, mscale_all_dim = 0;
  bool truncate = true;                      // yarn: rounds the borders of the range of blended frequencies to whole indices
  std::vector<double> factors{};             // longrope: R/2 factors, the short_factor of a config or, for texts above the original length, its long_factor
  double proportion = 1;                     // proportional: the part of the pairs that are rotated, in [0,1]
};

// Tables of rotary angles that own their memory.
struct RotaryTables {
  Tensor cos, sin;  // [*,T,R/2]
  RotaryOrder order = RotaryOrder::halves;
  std::int64_t width = 0;

  Rotary rotary() const& { return {.cos = cos, .sin = sin, .order = order, .width = width}; }  // Returns views of this object.
  Rotary rotary() const&& = delete;
};

class RotaryEmbedding {
 public:
  explicit RotaryEmbedding(const RotaryEmbeddingConfig& config);  // Computes the frequencies in float64. Error if a value is out of its range.

  // Returns tables [*,T,R/2] for integer positions [*,T], which may be negative. Angles, cosines and sines are computed in float64 and then rounded to `dtype`,
  // which is float32 or float64.
  RotaryTables tables(ConstTensorView positions, DType dtype = DType::f32) const;
  // Returns tables [count,R/2] for the positions first, first + 1, ...
  RotaryTables tables(std::int64_t first, std::int64_t count, DType dtype = DType::f32) const;
  // Returns tables [*,count,R/2] for the positions first[b], first[b] + 1, ... of each sequence b, where first is integers [*]. For tokens that continue a
  // cache, first is KeyValueCache::key_lengths() before they are appended.
  RotaryTables tables_from(ConstTensorView first, std::int64_t count, DType dtype = DType::f32) const;

  const RotaryEmbeddingConfig& config() const { return config_; }
  std::span<const double> frequencies() const { return frequencies_; }  // [R/2], in radians per position
  double attention_factor() const { return attention_factor_; }         // Returns the factor of cos and sin; it is 1 except with yarn and longrope.

 private:
  RotaryEmbeddingConfig config_;
  std::vector<double> frequencies_;
  double attention_factor_ = 1;
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
