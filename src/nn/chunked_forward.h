// Forward passes without `saved`, which are computed in chunks. Several layers are applied to a chunk, one after the other, while it is in the processor's
// cache. Parameters are packed once for all chunks.
#pragma once

#include "nn/packed_linear.h"
#include "nn/sequence_chunks.h"
#include "polyhead/nn/feed_forward.h"

#pragma GCC visibility push(default)  // These classes are exported, because libraries of other components use them.
namespace polyhead::nn::inline internal {

// The packed projections of an attention layer. output and gate are not set if the layer has none.
struct PackedAttention {
  PackedLinear q, k, v, output, gate;
};

// Computes all chunks. A thread calls step = make(executor) once, and then step(chunk, scratch) for each of its chunks, with the same scratch. If there is only
// one chunk, all threads compute it together.
template <class Scratch, class F>
void for_each_chunk(std::int64_t count, Executor* executor, const F& make) {
  if (count == 1) {
    Scratch scratch;
    return make(executor)(std::int64_t{0}, scratch);
  }
  parallel_for(count, 1, executor, [&](std::int64_t first, std::int64_t last) {
    LimitedThreads one(1);
    Scratch scratch;
    auto step = make(&one);
    for (std::int64_t chunk = first; chunk < last; ++chunk) step(chunk, scratch);
  });
}

// Computes MultiHeadAttention::forward() without `saved`. The constructor checks everything; it packs the parameters if there are several chunks. Layer, input
// and options must outlive the object.
class ChunkedAttention {
 public:
  ChunkedAttention(const ChunkedAttention&) = delete;
  ChunkedAttention& operator=(const ChunkedAttention&) = delete;
  ~ChunkedAttention() = default;
  ChunkedAttention(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionOptions& options);
  // Pass attention_shapes() of the input as `shapes`.
  ChunkedAttention(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionShapes& shapes,
                   const AttentionOptions& options);

  // Returns a chunk of a tensor that has the output's leading dimensions.
  template <class View>
  View of(const View& view, std::int64_t chunk) const {
    return is_chunked() ? chunks_.of(view, chunk) : view;
  }
  void run(std::int64_t chunk, TensorView out, MultiHeadAttention::Activations& scratch, Executor* executor) const;

  template <class F>
  void for_each_chunk(const F& make) const {
    nn::for_each_chunk<MultiHeadAttention::Activations>(chunks_.count(), options_.executor, make);
  }

 private:
  bool is_chunked() const { return chunks_.count() > 1; }

  const MultiHeadAttention& layer_;
  const AttentionInput& input_;
  const AttentionShapes shapes_;
  std::optional<AttentionOptions> own_options_;  // the options with a mask of the shape [*,S], if the caller's mask has the shape of the input
  const AttentionOptions& options_;
  const SequenceChunks chunks_;
  PackedAttention projections_;
};

// Computes FeedForward::forward() without `saved`, in chunks of rows.
class ChunkedFeedForward {
 public:
  ChunkedFeedForward(const FeedForward& module, ConstTensorView x, const RunOptions& options);

  // Returns a chunk of a tensor that has the leading dimensions of x.
  template <class View>
  View of(const View& view, std::int64_t chunk) const {
    return chunks_.of(view, dimension_, chunk);
  }
  void run(std::int64_t chunk, TensorView y, Tensor& scratch, Executor* executor) const;

  // Calls make(executor), and the step that make returns, as ChunkedAttention::for_each_chunk() does.
  template <class F>
  void for_each_chunk(const F& make) const {
    nn::for_each_chunk<Tensor>(chunks_.count(), options_.executor, make);
  }

 private:
  const FeedForward& module_;
  const ConstTensorView x_;
  const RunOptions options_;
  int dimension_ = -1;  // the dimension of x along which chunks are cut
  Chunks chunks_;
  PackedLinear hidden_, output_, gate_;
};

}  // namespace polyhead::nn::inline internal
#pragma GCC visibility pop
