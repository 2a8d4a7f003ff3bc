// The arguments of the attention kernels. The structs have no functions, because kernel sources would compile an inline function for AVX-512 too, and the
// linker could keep that copy for every processor. "Compute type" below means float32, or float64 for float64 tensors.
#pragma once

#include <cstdint>

#include "polyhead/dtype.h"
#include "polyhead/score_rule.h"
#include "problem/key_set.h"

namespace polyhead::cpu {

// A tensor [head, row, column] of one sequence, with strides in elements. If data is nullptr, the tensor is absent.
template <class Void>
struct BasicHeadView {
  Void* data = nullptr;
  std::int64_t head = 0, row = 0, column = 0;
};
using HeadView = BasicHeadView<const void>;
using MutableHeadView = BasicHeadView<void>;

// The query heads that share one key/value head, in one sequence or in one document: their tensors, mask and options. The rows of all these heads have
// consecutive numbers: row r is query r % queries of head r / queries. Head 0 is the first of these heads.
struct HeadGroup : KeySet {
  DType dtype = DType::f32;      // dtype of q and of the outputs
  DType key_dtype = DType::f32;  // dtype of k and v
  bool native = false;            // true: operands are multiplied as bfloat16 pairs (cpu/bf16_pairs.h), for which p, and in the backward pass d_score, are rounded to bfloat16
  std::int64_t heads = 0, qk_width = 0, v_width = 0;
  double scale_power = 1, scale_factor = 1;  // the scale is scale_power x scale_factor; scale_power is +-2^n or 0, scale_factor lies in [1, 2)
  double softcap = 0;
  const ScoreRule* rule = nullptr;  // nullptr: none
  std::int64_t rule_batch = 0, rule_head = 0, rule_query = 0, rule_key = 0;  // the indices that the rule gets for this sequence, head 0, query 0 and key 0

  HeadView q, k, v;           // k and v have one head; q has all heads of the group
  HeadView k_scale, v_scale;  // scales of int8 k and v: one float32 for each row
  HeadView bias;
  DType bias_dtype = DType::f32;  // dtype of the bias: that of q, or the compute type
  HeadView sink;  // sink logits [head, row] in the compute type; data is nullptr if there are none

  bool dropout = false;
  double dropout_scale = 1;
  HeadView keep;                    // keep bits given by the caller, one byte each; if data is nullptr, Philox generates the bits
  // p * 2^32 for a dropout probability p. A pair whose random 32-bit word is below this number is dropped.
  std::uint64_t drop_below = 0;
  std::uint32_t seed[2] = {}, batch_index = 0, first_head = 0;
  std::int64_t dropout_query = 0, dropout_key = 0;  // positions of query 0 and key 0 in the counters of Philox
};

// The number of rows of a block is a multiple of kRowMultiple, the rows of two tiles (cpu/tile.h).
constexpr int kRowMultiple = 12;

// Returns the number of keys of a key block of the forward pass. Key blocks begin at multiples of this number. It depends only on the head widths and on
// element_bytes, the size of the compute type, because it affects bits: the results of a row's key blocks are joined one after the other. 512 keys of 64 + 64
// float32 are 256 KiB, a quarter of a second-level cache of 1 MiB; 768 queries and their sums take another 384 KiB.
constexpr std::int64_t forward_key_block(std::int64_t qk_width, std::int64_t v_width, std::int64_t element_bytes) {
  return (qk_width > v_width ? qk_width : v_width) * element_bytes <= 512 ? 2048 / element_bytes : 256;
}

// The number of rows of a query block and of keys of a key block in the backward pass.
constexpr std::int64_t kBackwardBlockRows = 8 * kRowMultiple;
constexpr std::int64_t backward_block_keys(std::int64_t element_bytes) { return 1024 / element_bytes; }

// The distance between rows of a partial result, in elements. A row holds o, padded to whole vectors of every instruction set, and 16 more elements, of which
// the last two are m and l.
constexpr std::int64_t partial_stride(std::int64_t v_width) { return (v_width + 15) / 16 * 16 + 16; }

// A task of the forward pass: some rows of a group with all keys, or with one key split (some consecutive key blocks).
struct ForwardTask : HeadGroup {
  MutableHeadView out, lse, attention_weights;
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_key = 0, last_key = 0;  // the keys [first_key, last_key) of this task
  // Only for a task that computes a key split: the memory [blocks, rows, partial_stride()] to which o, m and l of each key block are written in the compute
  // type. out and lse are then not written.
  void* partial = nullptr;
};

// The distance between rows of the sums of a gradient, in elements: the head width padded to whole vectors of every instruction set.
constexpr std::int64_t gradient_stride(std::int64_t width) { return (width + 15) / 16 * 16; }

// A task of the backward pass: some rows of a group and some keys. It computes d_q of these rows and d_k and d_v of these keys, summed over the pairs of the
// task. A gradient whose view is absent is not computed. One task with several splits, and several tasks with one split each, give the same bits if the sums of
// the tasks are added in the order of the splits. For this, each split is summed from 0 and then added to the earlier splits: splits of keys for d_q, splits of
// rows for d_k and d_v.
struct BackwardTask : HeadGroup {
  HeadView out, lse, d_out;
  MutableHeadView d_q, d_k, d_v;
  // If write_d_bias, each pair has its own element, and the task writes d_bias in the tensor's dtype. Otherwise the task adds to d_bias in the compute type.
  MutableHeadView d_bias;
  double* rule_sums = nullptr;  // [head, gradient_count]: the score rule adds its gradients here; nullptr: they are not computed
  MutableHeadView d_sink;  // float64 [head, row]; written by the task whose first key is 0
  bool write_d_bias = false;
  // true: lse and out were computed from more keys than this problem has, so they are used without correction (BackwardProblem::part_of_keys)
  bool part_of_keys = false;
  bool stream_d_bias = false;  // true: write d_bias with non-temporal stores
  std::int64_t first_row = 0, rows = 0;       // the rows of the task; they form whole splits
  std::int64_t first_key = 0, last_key = 0;   // the keys of the task; they form whole splits
  std::int64_t rows_per_split = 0, keys_per_split = 0;  // keys_per_split is a multiple of the number of keys of a key block

  // Memory for sums in the compute type. The sums are not yet multiplied by the scale.
  void* d_q_sums = nullptr;   // sums of d_q [rows, gradient_stride()]; nullptr: d_q is not computed
  // As large as d_q_sums, for the sums over one split of keys. It is needed if the task has several splits of keys and each split adds several products.
  void* d_q_split = nullptr;
  bool store_d_q = true;      // true: the task converts d_q_sums to d_q; false: the caller adds the sums of several tasks first
  void *d_k_sums = nullptr, *d_v_sums = nullptr;  // sums [last_key - first_key, gradient_stride()]; if given, d_k and d_v are not written
};

// The tangents of a group's inputs (docs/maths.md, section 3a), in the dtypes of the inputs. An absent tangent means zeros. k and v have one head.
struct TangentViews {
  HeadView q, k, v, bias;
  HeadView sink;  // tangent of the sink logits, [head, row] in the compute type
};

// Numbers of a row that the jvp kernel computes and the backward_backward kernel reads. p = inverse exp(factor (x - shift) - lse), where `inverse` makes the p
// of all keys and the sink sum to 1.
template <class T>
struct RowValues {
  T shift, lse, inverse;
  T lse_tangent, delta, phi;  // these are lse', delta and phi of docs/maths.md, eq. 8b, 7 and 8d
};

// A task of forward mode: some rows of a group with all keys.
struct JvpTask : HeadGroup {
  HeadView out, lse;
  TangentViews tangents;
  MutableHeadView out_tangent, lse_tangent;
  HeadView d_out;                 // if given, delta and phi of RowValues are computed
  void* row_values = nullptr;  // array of RowValues of the compute type, one for each row of the group; nullptr: not computed
  std::int64_t first_row = 0, rows = 0;
};

// A task of the gradient of the backward pass: a BackwardTask, with tangents and with the RowValues of the jvp. There is a loss that depends on the results of
// the backward pass; its gradients are written to the views of gradients.
struct BackwardBackwardTask : BackwardTask {
  TangentViews tangents;
  const void* row_values = nullptr;
};

// Some rows of a gradient, with one array of partial sums for each split. The kernel adds the arrays in order, multiplies the total by `factor` and converts it
// to the gradient's dtype.
struct GradientTask {
  DType dtype = DType::f32;   // dtype of the gradient; the sums have its compute type
  void* const* sums = nullptr;  // [splits]: address of the first row of each array of sums; the first array is overwritten
  std::int64_t splits = 0, rows = 0, width = 0;  // sums: the rows of an array are gradient_stride(width) apart
  double factor = 1;
  MutableHeadView to;  // row i of the result is row i of this tensor's first head
};

// Some rows of the attention map of one head of a group. Each finished row is passed to `consume` or, if `consume` is nullptr, written to `out`.
struct MapsTask : HeadGroup {
  std::int64_t head = 0;                 // head of the map; 0 is the first head of the group
  const std::int64_t* chosen = nullptr;  // array [count] of the chosen queries
  std::int64_t count = 0;
  bool probability = true;  // true: the map holds attention weights; false: it holds scores, -infinity where masked
  // Receives the S values of row chosen[i]. Attention weights are 0 outside of `keys`, and `entropy` is their entropy -sum p log p. `sink` is the attention
  // weight of the sink.
  void (*consume)(void* consumer, std::int64_t i, const double* values, KeyRange keys, double entropy, double sink) = nullptr;
  void* consumer = nullptr;
  MutableHeadView out;              // row i of this tensor belongs to query chosen[i]
  DType out_dtype = DType::f32;  // dtype of `out`: float64 if the group's compute type is float64, else any other floating dtype
};

}  // namespace polyhead::cpu
