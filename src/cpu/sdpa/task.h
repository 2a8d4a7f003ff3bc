// The argument of each attention kernel, as plain data. A function shared with other sources would be compiled here for AVX-512 too, and the
// linker might keep that copy for every processor. "Compute type" below is float32, or float64 for float64 tensors.
#pragma once

#include <cstdint>

#include "polyhead/dtype.h"
#include "polyhead/score_rule.h"
#include "problem/key_set.h"

namespace polyhead::cpu {

// A tensor [head, row, column] of one sequence; strides are in elements. data == nullptr: absent.
template <class Void>
struct BasicPlane {
  Void* data = nullptr;
  std::int64_t head = 0, row = 0, column = 0;
};
using HeadView = BasicPlane<const void>;
using MutableHeadView = BasicPlane<void>;

// Attention of the query heads that share one key/value head, in one sequence or in one document. The rows of all these heads are numbered
// together: row r is query r % queries of head r / queries. Head 0 is the group's first head.
struct HeadGroup : KeySet {
  DType dtype = DType::f32;      // dtype of q and the outputs
  DType key_dtype = DType::f32;  // dtype of k and v
  bool native = false;            // products of bfloat16 pairs (cpu/bf16_pairs.h): p, and d_score in the backward pass, are rounded to bfloat16 for them
  std::int64_t heads = 0, qk_width = 0, v_width = 0;
  double scale_power = 1, scale_factor = 1;  // their product is the scale: +-2^n or 0, and a factor in [1, 2)
  double softcap = 0;
  const ScoreRule* rule = nullptr;  // nullptr: none
  std::int64_t rule_batch = 0, rule_head = 0, rule_query = 0, rule_key = 0;  // indices of the sequence, head 0, query 0 and key 0 that the rule sees

  HeadView q, k, v;           // k and v have one head
  HeadView k_scale, v_scale;  // scales of int8 k and v: one float32 for each row
  HeadView bias;
  DType bias_dtype = DType::f32;  // the dtype of q, or the compute type
  HeadView sink;  // sink logits [head, row] in the compute type; absent: -infinity

  bool dropout = false;
  double dropout_scale = 1;
  HeadView keep;                    // given keep bits, one byte each; absent: Philox generates them
  std::uint64_t drop_below = 0;  // p 2^32: an entry whose random 32-bit word is below this is dropped
  std::uint32_t seed[2] = {}, batch_index = 0, first_head = 0;
  std::int64_t dropout_query = 0, dropout_key = 0;  // positions of query 0 and key 0 in Philox's counters
};

// The number of rows of a block is a multiple of this: two tiles of rows (cpu/tile.h).
constexpr int kRowMultiple = 12;

// Number of keys of a forward key block. 512 keys of 64 + 64 float32 are 256 KiB, a quarter of a second-level cache of 1 MiB, which also holds 384 KiB of 768
// queries and their sums. Key blocks begin at multiples of this number. It follows from the widths alone, because it affects bits: the results of a row's key
// blocks are joined one after the other. element_bytes: size of the compute type.
constexpr std::int64_t forward_key_block(std::int64_t qk_width, std::int64_t v_width, std::int64_t element_bytes) {
  return (qk_width > v_width ? qk_width : v_width) * element_bytes <= 512 ? 2048 / element_bytes : 256;
}

// Rows and keys of a block of the backward pass.
constexpr std::int64_t kBackwardBlockRows = 8 * kRowMultiple;
constexpr std::int64_t backward_block_keys(std::int64_t element_bytes) { return 1024 / element_bytes; }

// Distance between rows of a partial result, in elements: o padded to whole vectors of every instruction set, and 16 elements of which the
// last two are m and l.
constexpr std::int64_t partial_stride(std::int64_t v_width) { return (v_width + 15) / 16 * 16 + 16; }

// Forward pass of some rows of a group over all keys or over one key split: some consecutive key blocks.
struct ForwardTask : HeadGroup {
  MutableHeadView out, lse, attention_weights;
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_key = 0, last_key = 0;  // the keys of this task
  // If the task is a key split: receives o, m and l of each of its key blocks [blocks, rows, partial_stride()] in the compute type; out and lse are not
  // written.
  void* partial = nullptr;
};

// Distance between rows of sums of a gradient: the width padded to whole vectors of every instruction set.
constexpr std::int64_t gradient_stride(std::int64_t width) { return (width + 15) / 16 * 16; }

// Backward pass of some rows of a group and some keys: d_k and d_v of these keys, d_q of these rows, each summed over the task's pairs. A
// gradient whose view is absent is not computed. d_q is added up split of keys by split of keys, d_k and d_v split of rows by split of
// rows: each split is summed from 0, then added to the sum of the splits before it. So tasks of one split each, whose sums are added in
// the order of the splits, give the bits of one task.
struct BackwardTask : HeadGroup {
  HeadView out, lse, d_out;
  MutableHeadView d_q, d_k, d_v;
  MutableHeadView d_bias;  // write_d_bias: written, in the storage type, one element for each pair; else added to, in the compute type
  double* rule_sums = nullptr;  // [head, gradient_count] of the score rule; nullptr: not wanted
  MutableHeadView d_sink;  // float64 [head, row]; written by the task whose first key is 0
  bool write_d_bias = false;
  bool part_of_keys = false;    // lse and out were computed from more keys than these: use them as given (BackwardProblem::part_of_keys)
  bool stream_d_bias = false;  // write d_bias with non-temporal stores
  std::int64_t first_row = 0, rows = 0;       // whole splits of rows
  std::int64_t first_key = 0, last_key = 0;   // whole splits of keys
  std::int64_t rows_per_split = 0, keys_per_split = 0;  // keys_per_split: whole blocks

  // Sums in the compute type, not yet multiplied by the scale.
  void* d_q_sums = nullptr;   // [rows, gradient_stride()]; nullptr: not computed
  void* d_q_split = nullptr;  // as large as d_q_sums, for one split of keys; needed if the task has several splits and each adds several products
  bool store_d_q = true;      // convert d_q_sums to d_q; false: the caller adds the sums of several tasks
  void *d_k_sums = nullptr, *d_v_sums = nullptr;  // [last_key - first_key, gradient_stride()]; if given, d_k and d_v are not written
};

// Tangents of a group's inputs (docs/maths.md, section 3a), in their dtypes; an absent one is zero. k and v have one head.
struct TangentViews {
  HeadView q, k, v, bias;
  HeadView sink;  // [head, row] in the compute type
};

// Numbers of a row that the jvp finds and backward_backward reads. p = inverse exp(factor (x - shift) - lse), so that the p of all keys and the sink sum to 1.
template <class T>
struct RowValues {
  T shift, lse, inverse;
  T lse_tangent, delta, phi;  // eq. 8b, 7, 8d
};

// Forward mode of some rows of a group over all keys.
struct JvpTask : HeadGroup {
  HeadView out, lse;
  TangentViews tangents;
  MutableHeadView out_tangent, lse_tangent;
  HeadView d_out;                 // if given, delta and phi of RowValues are computed
  void* row_values = nullptr;  // RowValues of the compute type, one for each row of the group; nullptr: not computed
  std::int64_t first_row = 0, rows = 0;
};

// Gradient of the backward pass: as BackwardTask, with the tangents and the RowValues of the jvp. The views of gradients receive the gradients of
// the second loss.
struct BackwardBackwardTask : BackwardTask {
  TangentViews tangents;
  const void* row_values = nullptr;
};

// Sums of some rows of a gradient, one array of sums for each split. They are added in order, multiplied by `factor` and converted.
struct GradientTask {
  DType dtype = DType::f32;   // dtype of the gradient; the sums have its compute type
  void* const* sums = nullptr;  // [splits]: address of the first row; the first array is overwritten
  std::int64_t splits = 0, rows = 0, width = 0;  // rows of sums are gradient_stride(width) apart
  double factor = 1;
  MutableHeadView to;  // receives row i in row i of its first head
};

// Some rows of the attention map of one head of a group. Each finished row is passed to `consume`, or written to `out` if that is nullptr.
struct MapsTask : HeadGroup {
  std::int64_t head = 0;                 // 0 is the group's first head
  const std::int64_t* chosen = nullptr;  // the chosen queries [count]
  std::int64_t count = 0;
  bool probability = true;  // true: attention weights; false: scores, -infinity where masked
  // Receives the S values of row chosen[i]. Attention weights are 0 outside of `keys`; their entropy is -sum p log p.
  void (*consume)(void* consumer, std::int64_t i, const double* values, KeyRange keys, double entropy) = nullptr;
  void* consumer = nullptr;
  MutableHeadView out;              // row i belongs to chosen[i]
  DType out_dtype = DType::f32;  // any type with the group's compute type
};

}  // namespace polyhead::cpu
