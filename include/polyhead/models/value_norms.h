// The norms of the transformed value vectors of a model's heads (polyhead/nn/value_norms.h), computed from the values v that the model's forward() writes. An
// attention map times these norms is the norm-weighted map:
//   norm-weighted map[l,*,n,t,s] = attentions[l,*,n,t,s] * value_norms[l,*,n,s]
#pragma once

#include <span>

#include "polyhead/nn/value_norms.h"
#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

struct BertEncoder;
struct LanguageModel;
struct TextSide;
struct VisionEncoder;

// Each function returns the norms [L,*,N,T] for the values v [L,*,K,T,V], such as BertOutput::v or LanguageOutput::v. The result is float64 if v or the
// parameters are float64, else float32.
Tensor value_norms(const BertEncoder& model, ConstTensorView v, const nn::RunOptions& options = {});
Tensor value_norms(const LanguageModel& model, ConstTensorView v, const nn::RunOptions& options = {});
Tensor value_norms(const TextSide& model, ConstTensorView v, const nn::RunOptions& options = {});
Tensor value_norms(const VisionEncoder& model, ConstTensorView v, const nn::RunOptions& options = {});
// Returns the value norms of given attention layers; `layers` may not be empty.
Tensor value_norms(std::span<const nn::MultiHeadAttention* const> layers, ConstTensorView v, const nn::RunOptions& options = {});

}  // namespace polyhead::models
#pragma GCC visibility pop
