// Random problems of attention: any sizes, strides, masks, biases and options, from one seed.
#pragma once

#include <list>

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
    Shape shape = lead;
    for (const std::int64_t extent : rest) shape.push_back(extent);
    return shape;
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

// What a backward pass writes. The gradient of a bias lies in memory laid out as the bias itself: shared elements are shared there too.
struct AttentionOutputs {
  TensorView out, lse, d_q, d_k, d_v, d_bias;
  TensorView d_table;  // the memory under d_bias, for a relative-position bias
  TensorView attention_weights;  // absent, but for a test that asks for them
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
  ConstTensorView k_scale, v_scale;  // of int8 k and v
  SdpaOptions options;

  AttentionCase() = default;
  AttentionCase(AttentionCase&&) = default;
  AttentionCase& operator=(AttentionCase&&) = default;

  // Memory that lives as long as the case.
  TensorView keep(StridedTensor tensor) { return strided_.emplace_back(std::move(tensor)).view(); }
  TensorView keep(Tensor tensor) { return tensors_.emplace_back(std::move(tensor)).view(); }
  const std::list<StridedTensor>& strided() const { return strided_; }

  // The one-dimensional memory behind a relative-position bias; absent for any other bias.
  TensorView table;

  void draw_inputs(Random& random, double magnitude = 1.5);

  // What a forward pass writes: of a long problem the gradients are most of the memory.
  AttentionOutputs make_forward_outputs(Random* random = nullptr);

  // Contiguous outputs, or strided ones.
  AttentionOutputs make_outputs(Random* random = nullptr);

  MapsInput maps() const { return {.q = q, .k = k, .k_scale = k_scale}; }
  void forward(const AttentionOutputs& o) const;
  void run(const AttentionOutputs& o) const;
  void backward(const AttentionOutputs& o) const;

  // A bias over [*,N,T,S] that reads table[.., s - t + T - 1].
  void use_bias_table(TensorView positions);

 private:
  TensorView relative_view(TensorView positions) const;

  std::list<StridedTensor> strided_;
  std::list<Tensor> tensors_;
};

// Random inputs; no options but the backend.
AttentionCase case_of(Random& random, DType dtype, const AttentionSizes& sizes, double magnitude = 1.5);
AttentionCase case_of(Random& random, DType dtype, const AttentionSizes& sizes, const Backend* backend);

// `shape` with some extents replaced by 1 and some leading ones left out: what broadcasts to it.
Shape broadcastable(Random& random, const Shape& shape);

// [documents + 1] that rise from 0 to `end`; some documents are empty.
Tensor draw_offsets(Random& random, DType dtype, std::int64_t documents, std::int64_t end);

void draw_mask(Random& random, AttentionCase& c);

// Block lists in one of four cases, with blocks of any size.
void draw_blocks(Random& random, AttentionCase& c);

// Lengths [D] of D sequences and D documents are refused.
void drop_ambiguous_lengths(Mask& mask);

// Documents in one of three cases, and in two of three if T = S: only those may leave out key_offsets, and they are few.
void draw_documents(Random& random, AttentionCase& c);

// In a third of the cases with a causal diagonal or a window, each sequence gets a diagonal of its own. Not together with documents.
void draw_diagonal_offsets(Random& random, AttentionCase& c);

// In a sixth of the cases slopes or a table of buckets in place of a bias; not if a diagonal is far off.
void draw_relative_bias(Random& random, AttentionCase& c);

// A sink or its gradient as what broadcasts to [*,N,T].
template <class View>
View sink_rows(const View& sink) {
  return sink.rank() == 1 ? sink.unsqueeze(-1) : sink;
}

AttentionSizes draw_sizes(Random& random);

// Sink logits in one of four cases: near the scores, or far above or below them; some are -infinity.
void draw_sink(Random& random, AttentionCase& c);

// Everything but the sizes at random.
AttentionCase draw_case(Random& random, DType dtype, const AttentionSizes& sizes);

AttentionCase draw_case(Random& random, DType dtype);

// k and v in a storage type of their own, as a key/value cache has them; there is no backward pass then.
void draw_key_storage(Random& random, AttentionCase& c);

// The values of k or v: float32(scale * int8), where the product has 32 bits and is exact in float64.
Tensor values_of(ConstTensorView stored, ConstTensorView scale);

FullResults naive_attention(const AttentionCase& c);

// Elements that a view's memory spans, counted from the lowest.
struct SpannedElements {
  std::size_t count = 0;
  std::int64_t origin = 0;

  explicit SpannedElements(ConstTensorView view);
  std::size_t at(std::int64_t offset) const { return static_cast<std::size_t>(origin + offset); }
};

// What the naive gradients of all positions of `all` (pairs, or rows of a sink) sum to in memory laid out as `like`, one row-major element per
// position of `like`: positions that share memory all show the sum.
Tensor summed_gradient(const Matrix& gradients, const Shape& all, TensorView like);

// Whether the gradients are those of the naive formula: agrees(actual, expected).
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
