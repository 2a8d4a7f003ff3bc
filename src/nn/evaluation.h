// Evaluations in parts whose weights are packed once, for a layer made of several to go on with each part while it is in the cache.
#pragma once

#include "nn/packed_linear.h"
#include "nn/sequences.h"
#include "polyhead/nn/feed_forward.h"

namespace polyhead::nn {

// The projections of an attention layer; output and gate only where it has them.
struct PackedAttention {
  PackedLinear q, k, v, output, gate;
};

// make(executor) once per thread, and of what it gives step(part, between) for each part: `between` keeps its memory from part to part.
// A single part is computed by all threads.
template <class Between, class F>
void for_each_part(std::int64_t count, Executor* executor, const F& make) {
  if (count == 1) {
    Between between;
    return make(executor)(std::int64_t{0}, between);
  }
  parallel_for(count, 1, executor, [&](std::int64_t first, std::int64_t last) {
    LimitedThreads one(1);
    Between between;
    auto step = make(&one);
    for (std::int64_t part = first; part < last; ++part) step(part, between);
  });
}

// MultiHeadAttention.forward without `saved`. Everything is checked, the call is cut and, where there are several parts, the weights are
// packed before the first part is computed.
class AttentionEvaluation {
 public:
  AttentionEvaluation(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionOptions& options);
  // `shapes` are those of the input.
  AttentionEvaluation(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionShapes& shapes, const AttentionOptions& options);

  // A tensor with the leading dimensions of the output, cut alike.
  template <class View>
  View of(const View& view, std::int64_t part) const {
    return in_parts() ? sequences_.of(view, part) : view;
  }
  void run(std::int64_t part, TensorView out, MultiHeadAttention::Activations& between, Executor* executor) const;

  template <class F>
  void for_each_part(const F& make) const {
    nn::for_each_part<MultiHeadAttention::Activations>(sequences_.parts().count(), options_.executor, make);
  }

 private:
  bool in_parts() const { return sequences_.parts().count() > 1; }

  const MultiHeadAttention& layer_;
  const AttentionInput input_;
  const AttentionShapes shapes_;
  const AttentionOptions options_;  // mask and bias as views that broadcast to [*,N,T,S]
  const SequenceParts sequences_;
  PackedAttention projections_;
};

// FeedForward.forward without `saved`: a few rows at a time where there are many.
class FeedForwardEvaluation {
 public:
  FeedForwardEvaluation(const FeedForward& module, ConstTensorView x, const RunOptions& options);

  // A tensor with the leading dimensions of x, cut alike.
  template <class View>
  View of(const View& view, std::int64_t part) const {
    return parts_.of(view, dimension_, part);
  }
  void run(std::int64_t part, TensorView y, Tensor& between, Executor* executor) const;

  // As that of AttentionEvaluation.
  template <class F>
  void for_each_part(const F& make) const {
    nn::for_each_part<Tensor>(parts_.count(), options_.executor, make);
  }

 private:
  const FeedForward& module_;
  const ConstTensorView x_;
  const RunOptions options_;
  int dimension_ = -1;  // of x: which is cut
  Parts parts_;
  PackedLinear hidden_, output_;
};

}  // namespace polyhead::nn
