// Makes the tables of nn::Rotary from positions: angle = position x frequency, with the frequencies that models are trained with (Su et al.
// 2021, RoFormer, section 3.2.2) and the rules that stretch them to longer texts. Use it where a model's config says "rope_theta" and
// "rope_scaling"; the fields are named like the keys of such configs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "polyhead/nn/rotary.h"
#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// Without scaling, frequency i of R/2 is f[i] = base^(-2i/R). Scaling changes the frequencies (docs/maths.md, eq. 11b to 11h):
enum class RotaryScaling : std::uint8_t {
  none,
  linear,  // f / factor: position interpolation (Chen et al. 2023, eq. 4)
  ntk,     // base grows to base factor^(R/(R-2)), so that the lowest frequency is that of `linear` ("NTK-aware", Peng et al. 2023, eq. 16)
  llama3,  // long wavelengths: f / factor; short ones: f; between them a blend of both (Llama 3.1, 2024)
  yarn,    // a blend of f and f / factor, chosen by the number of turns in the original length; cos and sin are multiplied by an attention factor (Peng et al. 2023, YaRN, eq. 17-22)
  longrope,      // f[i] / factors[i]; cos and sin are multiplied by an attention factor (Ding et al. 2024, LongRoPE; Phi-3)
  proportional,  // f / factor for the first `proportion` of the pairs; 0 for the others, which are not rotated (Gemma 4)
};

// A field that the scaling rule does not use is an Error unless it has its default.
struct RotaryEmbeddingConfig {
  std::int64_t width = 0;  // R: the features of each head that are rotated; even, at least 2
  double base = 10000;     // theta
  RotaryOrder order = RotaryOrder::halves;
  RotaryScaling scaling = RotaryScaling::none;
  double factor = 1;                            // new length / original length, at least 1; not used by `none`
  double original_max_position_embeddings = 0;  // length of the texts in training; required with llama3 and yarn, and with longrope if attention_factor is absent
  double low_freq_factor = 1,
         high_freq_factor = 4;               // llama3: f / factor if the wavelength is above original length / low; f if it is below original length / high
  double beta_fast = 32, beta_slow = 1;      // yarn: frequencies that make at least beta_fast turns in the original length stay f; those that make fewer than beta_slow become f / factor
  std::optional<double> attention_factor{};  // yarn, longrope: multiplies cos and sin. Absent: computed from factor and mscale, mscale_all_dim or the original length
  double mscale = 0, mscale_all_dim = 0;     // yarn, in DeepSeek's models: the attention factor is computed from both; 0: neither, as with attention_factor
  bool truncate = true;                      // yarn: round the range of blended frequencies to whole indices
  std::vector<double> factors{};             // longrope: R/2 factors; a config's short_factor or, for texts above the original length, long_factor
  double proportion = 1;                     // proportional: in [0,1]
};

// Tables that own their memory.
struct RotaryTables {
  Tensor cos, sin;  // [*,T,R/2]
  RotaryOrder order = RotaryOrder::halves;
  std::int64_t width = 0;

  Rotary rotary() const& { return {.cos = cos, .sin = sin, .order = order, .width = width}; }  // views of this object
  Rotary rotary() const&& = delete;
};

class RotaryEmbedding {
 public:
  explicit RotaryEmbedding(const RotaryEmbeddingConfig& config);  // Error if a value is out of its range; frequencies are computed in float64

  // Returns tables [*,T,R/2] for integer positions [*,T], which may be negative. Angles, cosines and sines are computed in float64, then rounded to
  // `dtype`, float32 or float64.
  RotaryTables tables(ConstTensorView positions, DType dtype = DType::f32) const;
  // Returns tables [count,R/2] for the positions first, first + 1, ...
  RotaryTables tables(std::int64_t first, std::int64_t count, DType dtype = DType::f32) const;
  // Returns tables [*,count,R/2] for the positions first[b], first[b] + 1, ... of each sequence b; first: integers [*]. For tokens that continue a cache,
  // first is KeyValueCache::key_lengths() before they are appended.
  RotaryTables tables_from(ConstTensorView first, std::int64_t count, DType dtype = DType::f32) const;

  const RotaryEmbeddingConfig& config() const { return config_; }
  std::span<const double> frequencies() const { return frequencies_; }  // [R/2], in radians per position
  double attention_factor() const { return attention_factor_; }         // multiplies cos and sin; 1 except with yarn and longrope

 private:
  RotaryEmbeddingConfig config_;
  std::vector<double> frequencies_;
  double attention_factor_ = 1;
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
