// Random problems of attention, with random sizes, strides, masks, biases and options drawn from one seed.
#pragma once

#include <list>

#include "core/index.h"
#include "polyhead/maps.h"
#include "polyhead/sdpa.h"
#include "support/naive_attention.h"
#include "support/random.h"

namespace polyhead::test {

struct AttentionSizes {
  Shape lead;
  std::int64_t kv_heads = 1, group = 1;  // N = kv_heads * group
  std::int64_t queries = 1, keys = 1, qk_width = 1, v_width = 1;

  Shape with(std::initializer_list<std::int64_t> rest) const {
    return appended(lead, rest);
  }
  std::int64_t heads() const { return kv_heads * group; }
  Shape q() const { return with({heads(), queries, qk_width}); }
  Shape k() const { return with({kv_heads, keys, qk_width}); }
  Shape v() const { return with({kv_heads, keys, v_width}); }
  Shape out() const { return with({heads(), queries, v_width}); }
  Shape lse() const { return with({heads(), queries}); }
  Shape pairs() const { return with({heads(), queries, keys}); }
  Shape keys_of() const { return with({keys}); }
};

// The outputs of a forward and a backward pass. d_bias has the memory layout of the bias: elements that share memory in the bias share it in d_bias.
struct AttentionOutputs {
  TensorView out, lse, d_q, d_k, d_v, d_bias;
  TensorView d_table;  // the memory of d_bias if the bias is a view of a table of distances (AttentionCase::table)
  TensorView attention_weights;  // absent unless a test requests them
  TensorView d_sink, d_relative_bias;

  std::vector<std::pair<const char*, TensorView>> list() const {
    return {{"out", out}, {"lse", lse}, {"d_q", d_q}, {"d_k", d_k}, {"d_v", d_v}, {"d_bias", d_bias}, {"d_sink", d_sink}, {"d_relative_bias", d_relative_bias}};
  }
};

class AttentionCase {
 public:
  AttentionSizes sizes;
  DType dtype = DType::f64;
  ConstTensorView q, k, v, d_out;
  ConstTensorView k_scale, v_scale;  // scales of int8 k and v
  SdpaOptions options;

  AttentionCase() = default;
  AttentionCase(AttentionCase&&) = default;
  AttentionCase& operator=(AttentionCase&&) = default;

  // Stores the tensor in the case, and returns a view that is valid as long as the case lives.
  TensorView keep(StridedTensor tensor) { return strided_.emplace_back(std::move(tensor)).view(); }
  TensorView keep(Tensor tensor) { return tensors_.emplace_back(std::move(tensor)).view(); }
  const std::list<StridedTensor>& strided() const { return strided_; }

  // If the bias is a view [*,N,T,S] of a one-dimensional table of distances: that table; else absent.
  TensorView table;

  void draw_inputs(Random& random, double magnitude = 1.5);

  // Allocates only the outputs of a forward pass. Use it for long problems, whose gradients would need most of the memory.
  AttentionOutputs make_forward_outputs(Random* random = nullptr);

  // Allocates all outputs: with random strides if `random` is given, else contiguous.
  AttentionOutputs make_outputs(Random* random = nullptr);

  MapsInput maps() const { return {.q = q, .k = k, .k_scale = k_scale}; }
  void forward(const AttentionOutputs& o) const;
  void run(const AttentionOutputs& o) const;
  void backward(const AttentionOutputs& o) const;

  // Sets a bias [*,N,T,S] whose element (t,s) is positions[.., s - t + T - 1].
  void use_bias_table(TensorView positions);

 private:
  TensorView relative_view(TensorView positions) const;

  std::list<StridedTensor> strided_;
  std::list<Tensor> tensors_;
};

// Returns a case with random inputs and no options except the backend.
AttentionCase case_of(Random& random, DType dtype, const AttentionSizes& sizes, double magnitude = 1.5);
AttentionCase case_of(Random& random, DType dtype, const AttentionSizes& sizes, const Backend* backend);

// Returns a random shape that broadcasts to `shape`: it replaces some extents by 1 and leaves out some leading ones.
Shape broadcastable(Random& random, const Shape& shape);

// Returns random offsets [documents + 1] from 0 to `end`; some documents are empty.
Tensor draw_offsets(Random& random, DType dtype, std::int64_t documents, std::int64_t end);

void draw_mask(Random& random, AttentionCase& c);

// Adds block lists (Mask::blocks) with blocks of random size to one in four cases.
void draw_blocks(Random& random, AttentionCase& c);

// Removes key starts and key lengths [D] if there are D sequences and D documents: attention refuses them, because they could belong to sequences or to documents.
void drop_ambiguous_ranges(Mask& mask);

// Adds documents to one in three cases, or to two in three cases if T = S. T = S is rare, and only with T = S can key_offsets be left out.
void draw_documents(Random& random, AttentionCase& c);

// Adds diagonal_offsets to a third of the cases that have a causal diagonal or a window and no documents.
void draw_diagonal_offsets(Random& random, AttentionCase& c);

// Adds key_starts to a third of the cases. Takes a copy of the generator, so that the numbers drawn later stay the same.
void draw_key_starts(Random random, AttentionCase& c);

// Replaces the bias by a relative bias (slopes or a table of buckets) in a sixth of the cases. Cases with a very large diagonal offset are not changed.
void draw_relative_bias(Random& random, AttentionCase& c);

// Returns a view of a sink, or of its gradient, that broadcasts to [*,N,T].
template <class View>
View sink_rows(const View& sink) {
  return sink.rank() == 1 ? sink.unsqueeze(-1) : sink;
}

AttentionSizes draw_sizes(Random& random);

// Adds sink logits to one in four cases. The logits are near the scores, or far above or below them, and some are -infinity.
void draw_sink(Random& random, AttentionCase& c);

// Returns a case of the given dtype and sizes with random inputs and options.
AttentionCase draw_case(Random& random, DType dtype, const AttentionSizes& sizes);

AttentionCase draw_case(Random& random, DType dtype);

// Replaces k and v by random tensors of bfloat16, float16 or int8, as key/value caches store them; does nothing to a float64 case. If their dtype is not that
// of q, the case has no backward pass.
void draw_key_storage(Random& random, AttentionCase& c);

// Returns the values of an int8 k or v: scale * int8, rounded to float32. The product has at most 32 significant bits, so it is exact in float64 before it is
// rounded.
Tensor values_of(ConstTensorView stored, ConstTensorView scale);

FullResults naive_attention(const AttentionCase& c);

// The range of memory that a view spans: its number of elements from the lowest to the highest address, and where the view begins in it.
struct SpannedElements {
  std::size_t count = 0;
  std::int64_t origin = 0;

  explicit SpannedElements(ConstTensorView view);
  std::size_t at(std::int64_t offset) const { return static_cast<std::size_t>(origin + offset); }
};

// Sums naive gradients, which have one element for each position of the shape `all` (pairs, or rows of a sink), in memory with the layout of `like`. Returns a
// tensor with one element for each position of `like`: all positions that share memory have the same sum.
Tensor summed_gradient(const Matrix& gradients, const Shape& all, TensorView like);

// Compares the gradients with those of the naive formula: agrees(actual, expected) is called for each of them.
template <class Agrees>
void expect_naive_gradients(const AttentionCase& c, const FullResults& expected, const AttentionOutputs& o, const Agrees& agrees) {
  EXPECT_TRUE(agrees(o.d_q, to_tensor(expected.d_q, c.sizes.q()))) << "d_q";
  EXPECT_TRUE(agrees(o.d_k, to_tensor(expected.d_k, c.sizes.k()))) << "d_k";
  EXPECT_TRUE(agrees(o.d_v, to_tensor(expected.d_v, c.sizes.v()))) << "d_v";
  if (o.d_bias) {
    EXPECT_TRUE(agrees(o.d_bias, summed_gradient(expected.d_score, c.sizes.pairs(), o.d_bias))) << "d_bias";
  }
  if (o.d_sink) {
    const TensorView d_sink = sink_rows(o.d_sink);
    EXPECT_TRUE(agrees(d_sink, summed_gradient(expected.d_sink, c.sizes.lse(), d_sink))) << "d_sink";
  }
  if (o.d_relative_bias) {
    const Tensor wanted = relative_gradient(full_matrices(c.q, c.k, c.v, c.d_out, c.options), expected.d_score, c.options, c.sizes.pairs());
    EXPECT_TRUE(agrees(o.d_relative_bias, wanted)) << "d_relative_bias";
  }
}

}  // namespace polyhead::test
