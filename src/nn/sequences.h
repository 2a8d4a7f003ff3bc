// An evaluation of a layer cut into parts of a few sequences each, which know nothing of each other.
#pragma once

#include "nn/attention_shapes.h"

namespace polyhead::nn {

class SequenceParts {
 public:
  // Parts whose projected tensors fit a second-level cache. One where that is all, where threads would go without, with keys of the layer's
  // own, and with dropout, which counts sequences from the first. The mask and bias of the options broadcast to [*,N,T,S].
  SequenceParts(const MultiHeadAttentionConfig& config, const AttentionShapes& shapes, const AttentionOptions& options);

  std::int64_t count() const { return (extent_ + size_ - 1) / size_; }
  AttentionInput of(const AttentionInput& input, std::int64_t part) const;
  TensorView of(TensorView out, std::int64_t part) const { return sliced(out, dimension_, part); }
  AttentionOptions of(const AttentionOptions& options, std::int64_t part) const;

 private:
  // A dimension that is missing or broadcast is the same for all parts.
  template <class View>
  View sliced(const View& view, int dimension, std::int64_t part) const {
    if (!view || dimension < 0 || view.extent(dimension) == 1) return view;
    const std::int64_t first = part * size_;
    return view.slice(dimension, first, first + size_ < extent_ ? first + size_ : extent_);
  }

  std::int64_t extent_ = 1, size_ = 1;  // of the leading dimension that is cut, of a part
  int lead_ = 0, rank_ = 0;             // its index among the leading dimensions, and how many these are
  int dimension_ = 0;                   // its index in the inputs
};

// Error where sdpa_forward would find one in the mask or the bias of the whole: before any part is written.
void require_pairs(const MultiHeadAttentionConfig& config, const AttentionShapes& shapes, const AttentionOptions& options);

}  // namespace polyhead::nn
