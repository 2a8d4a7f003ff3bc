// An evaluation of a layer cut into parts of a few sequences each, which know nothing of each other.
#pragma once

#include "nn/attention_shapes.h"
#include "nn/parts.h"

namespace polyhead::nn {

class SequenceParts {
 public:
  // One part also with keys of the layer's own, and with dropout, which counts sequences from the first. The mask and bias of the options
  // broadcast to [*,N,T,S].
  SequenceParts(const MultiHeadAttentionConfig& config, const AttentionShapes& shapes, const AttentionOptions& options);

  const Parts& parts() const { return parts_; }
  AttentionInput of(const AttentionInput& input, std::int64_t part) const;
  template <class View>
  View of(const View& out, std::int64_t part) const {
    return parts_.of(out, dimension_, part);
  }
  AttentionOptions of(const AttentionOptions& options, std::int64_t part) const;

 private:
  Parts parts_;
  int lead_ = 0, rank_ = 0;  // which of how many leading dimensions is cut
  int dimension_ = 0;        // the same in the inputs
};

// Error where sdpa_forward would find one in the mask or the bias of the whole: before any part is written.
void require_mask_and_bias(const MultiHeadAttentionConfig& config, const AttentionShapes& shapes, const AttentionOptions& options);

}  // namespace polyhead::nn
