// Cuts a forward pass of attention into independent chunks of a few sequences each.
#pragma once

#include "nn/attention_shapes.h"
#include "nn/chunks.h"

namespace polyhead::nn {

class SequenceChunks {
 public:
  // Makes only one chunk if the layer adds keys; with a cache, because a call appends to it once; with a score rule or dropout, because both depend on each
  // sequence's index; and if there are few queries.
  SequenceChunks(const MultiHeadAttentionConfig& config, const AttentionShapes& shapes, const AttentionOptions& options);

  std::int64_t count() const { return chunks_.count(); }
  AttentionInput of(const AttentionInput& input, std::int64_t chunk) const;
  template <class View>
  View of(const View& out, std::int64_t chunk) const {
    return chunks_.of(out, dimension_, chunk);
  }
  AttentionOptions of(const AttentionOptions& options, std::int64_t chunk) const;

 private:
  Chunks chunks_;
  int lead_ = 0, rank_ = 0;  // index of the leading dimension that is cut, and number of leading dimensions
  int dimension_ = 0;        // index of the dimension in the inputs that is cut
};

// Checks the mask, the bias and the sink of the whole call as sdpa_forward() does. Call it before any chunk is written.
void require_sdpa_options(const MultiHeadAttentionConfig& config, const AttentionShapes& shapes, const AttentionOptions& options);

}  // namespace polyhead::nn
