// What a kernel of attention is given: plain data, so that a kernel source needs no header with code of its own.
#pragma once

#include <cstdint>

#include "polyhead/dtype.h"

namespace polyhead::cpu {

// One sequence's tensor of some heads: element (head, row, column) at these strides, counted in elements. data == nullptr: absent.
struct Plane {
  const void* data = nullptr;
  std::int64_t head = 0, row = 0, column = 0;
};
struct MutablePlane {
  void* data = nullptr;
  std::int64_t head = 0, row = 0, column = 0;
};

struct MaskPlane : Plane {
  bool attend = true;  // a pair is kept where the byte's truth is this
};

// What a row that the mask empties does; normal: it has keys, or it gives zero.
enum class RowKind : std::uint8_t { normal, uniform, unmasked };

// Attention of the query heads that share one key/value head of one sequence. The rows of these heads are counted as one: row r is query
// r % queries of head r / queries. Heads are counted from the group's first.
struct HeadGroup {
  DType dtype = DType::f32;
  std::int64_t heads = 0, queries = 0, keys = 0, qk_width = 0, v_width = 0;
  double scale = 1, softcap = 0;

  Plane q, k, v;  // k and v have one head
  Plane bias;
  MaskPlane masks[2];
  int mask_count = 0;

  bool banded = false;             // keys [t + lower, t + upper) of query t, below its length
  std::int64_t lower = 0, upper = 0;
  const std::int64_t* lengths = nullptr;  // of the sequence, or of each query
  bool length_per_query = false;
  const RowKind* kinds = nullptr;  // one per row; nullptr: all are normal

  bool dropout = false;
  double dropout_scale = 1;
  Plane keep;                      // bytes; absent: drawn by the generator
  std::uint64_t drop_below = 0;    // keep an entry whose word is not below this
  std::uint32_t seed[2] = {}, batch_index = 0, first_head = 0;
};

// Between rows of a partial result: o in whole vectors of every instruction set; m and l are the last two elements.
constexpr std::int64_t partial_stride(std::int64_t v_width) { return (v_width + 15) / 16 * 16 + 16; }

// Some rows of a group, of all keys or of a part of them.
struct ForwardTask : HeadGroup {
  MutablePlane out, lse, attention_weights;
  std::int64_t first_row = 0, rows = 0;      // what this task computes
  std::int64_t first_key = 0, last_key = 0;  // from the keys [first_key, last_key)
  void* partial = nullptr;  // [rows, partial_stride()] in the type of arithmetic, written instead of out and lse: m, l and o of these keys
};

// Between rows of d_q_sums: whole vectors of every instruction set.
constexpr std::int64_t backward_sums_stride(std::int64_t qk_width) { return (qk_width + 15) / 16 * 16; }

// The keys [first_key, last_key) of a group: d_k and d_v of these, and their part of d_q. An absent plane is not computed.
struct BackwardTask : HeadGroup {
  Plane out, lse, d_out;
  MutablePlane d_q, d_k, d_v;
  MutablePlane d_bias;       // in the type of arithmetic, added to; or, where pairs do not share elements, in the storage type, written
  bool write_d_bias = false;
  bool stream_d_bias = false;  // written past the caches
  std::int64_t first_key = 0, last_key = 0;
  void* d_q_sums = nullptr;  // [rows of the group, backward_sums_stride()] in the type of arithmetic; written; absent: d_q is not wanted
  bool store_d_q = true;     // from the sums; else that is left to who adds the parts of the other keys
};

// Rows of maps of one head of a group, each as soon as it is there: to `take`, or where there is none into `out`.
struct MapsTask : HeadGroup {
  std::int64_t head = 0;               // counted from the group's first
  const std::int64_t* chosen = nullptr;  // the queries
  std::int64_t count = 0;
  bool probability = true;             // else scores, -infinity where masked
  void (*take)(void* taker, std::int64_t i, const double* values) = nullptr;  // of the i-th chosen query, one per key
  void* taker = nullptr;
  MutablePlane out;                    // row i is the i-th chosen query's
  DType out_dtype = DType::f32;        // whose arithmetic is the group's
};

}  // namespace polyhead::cpu
