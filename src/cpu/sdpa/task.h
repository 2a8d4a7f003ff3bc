// The argument of each attention kernel, as plain data: kernel sources include no header whose functions other objects share.
#pragma once

#include <cstdint>

#include "polyhead/dtype.h"
#include "problem/key_set.h"

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

// Attention of the query heads that share one key/value head of one sequence, or of one document of it. The rows of these heads are counted
// as one: row r is query r % queries of head r / queries. Heads are counted from the group's first.
struct HeadGroup : KeySet {
  DType dtype = DType::f32;
  std::int64_t heads = 0, qk_width = 0, v_width = 0;
  double scale = 1, softcap = 0;

  Plane q, k, v;  // k and v have one head
  Plane bias;

  bool dropout = false;
  double dropout_scale = 1;
  Plane keep;                      // bytes; absent: drawn by the generator
  std::uint64_t drop_below = 0;    // keep an entry whose word is not below this
  std::uint32_t seed[2] = {}, batch_index = 0, first_head = 0;
  std::int64_t first_query = 0;    // position of query 0 in the packed sequence, for the generator; first_key is that of key 0
};

// Between rows of a partial result: o in whole vectors of every instruction set; m and l are the last two elements.
constexpr std::int64_t partial_stride(std::int64_t v_width) { return (v_width + 15) / 16 * 16 + 16; }

// Some rows of a group, with all keys or one split of them.
struct ForwardTask : HeadGroup {
  MutablePlane out, lse, attention_weights;
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_key = 0, last_key = 0;  // the key split
  void* partial = nullptr;  // [rows, partial_stride()] in the type of arithmetic, written instead of out and lse: m, l and o of these keys
};

// Between rows of d_q_sums: whole vectors of every instruction set.
constexpr std::int64_t backward_sums_stride(std::int64_t qk_width) { return (qk_width + 15) / 16 * 16; }

// The keys [first_key, last_key) of a group: their d_k and d_v, and their terms of d_q. An absent plane is not computed.
struct BackwardTask : HeadGroup {
  Plane out, lse, d_out;
  MutablePlane d_q, d_k, d_v;
  MutablePlane d_bias;       // in the type of arithmetic, added to; or, where pairs do not share elements, in the storage type, written
  bool write_d_bias = false;
  bool stream_d_bias = false;  // with non-temporal stores
  std::int64_t first_key = 0, last_key = 0;
  void* d_q_sums = nullptr;  // [rows of the group, backward_sums_stride()] in the type of arithmetic; written; nullptr: d_q is not wanted
  bool store_d_q = true;     // from the sums; else the caller adds the sums of all key splits
};

// Attention maps of some rows of one head of a group. Each finished row goes to `take`, or into `out` if take is nullptr.
struct MapsTask : HeadGroup {
  std::int64_t head = 0;               // counted from the group's first
  const std::int64_t* chosen = nullptr;  // the queries
  std::int64_t count = 0;
  bool probability = true;             // else scores, -infinity where masked
  void (*take)(void* taker, std::int64_t i, const double* values) = nullptr;  // the i-th chosen query's values [S]
  void* taker = nullptr;
  MutablePlane out;                    // row i is the i-th chosen query's
  DType out_dtype = DType::f32;        // has the group's type of arithmetic
};

}  // namespace polyhead::cpu
