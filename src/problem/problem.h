// The normal form of an attention problem, which every backend reads. normal_form() in src/sdpa checks the caller's arguments and converts them to this form.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/text.h"
#include "polyhead/executor.h"
#include "polyhead/maps.h"
#include "polyhead/mask.h"
#include "polyhead/score_rule.h"
#include "polyhead/tensor.h"
#include "polyhead/tensor_view.h"
#include "problem/key_set.h"

namespace polyhead {

// The keys that the causal mask and the window allow query t to attend to: [t + lower, t + upper). Both bounds lie in [-T, S], so that sums do not overflow.
struct Band {
  std::int64_t lower = 0, upper = 0;
  std::int64_t diagonal = 0;         // only with a relative bias: the distance of query t and key s is s - (t + diagonal)
  std::int64_t distance_origin = 0;  // only with a relative bias: index in Problem::relative_bias of the distance of query 0 and key 0
};

// The distances for which a relative bias has values, as disjoint ranges in ascending order.
using Distances = std::vector<KeyRange>;

// A packed sequence holds several documents one after the other. A query attends only to keys of its document. A problem without documents is treated as one
// document that holds every pair.
struct Document {
  KeyRange queries{0, 0}, keys{0, 0};
  // Set if there is a causal mask, a window or a relative bias. Positions are relative to the start of the document. If KeyRules::bands is used, `band`
  // encloses the bands of all sequences.
  Band band{};
};

// A boolean mask, broadcast to [*,N,T,S] by zero strides. A query may attend to a key if the pair's element equals `attend`. If listed.queries > 0, the tensor
// is [*,N, blocks of queries, blocks of keys] and says which blocks are listed (Mask::blocks).
struct DenseMask {
  ConstTensorView tensor;
  bool attend = true;
  BlockSize listed{.queries = 0, .keys = 0};
};

// The keys that each query may attend to, for all sequences and heads. Problem::place() writes the KeySet of some heads of one sequence.
struct KeyRules {
  std::int64_t queries = 0;
  Document all_pairs;                  // the only document if the caller gave none
  // In order; every query and every key belongs to exactly one document. Empty: `all_pairs` is the only document.
  std::vector<Document> documents;
  bool banded = false;                 // false: there is no causal mask and no window
  std::vector<Band> bands;             // one for each sequence if Mask::diagonal_offsets is given; else empty, and Document::band is used
  std::vector<KeyRange> ranges;        // the keys [start, length) of each sequence, or of each query of each sequence; empty: all keys
  bool range_per_query = false;
  std::array<DenseMask, KeySet::kMostMasks> masks;
  int mask_count = 0;

  void add(const DenseMask& mask) {
    require(mask_count < KeySet::kMostMasks, "a mask has more than ", KeySet::kMostMasks, " boolean tensors");
    masks[static_cast<std::size_t>(mask_count++)] = mask;
  }
  const Band& band(std::int64_t b, const Document& document) const { return bands.empty() ? document.band : bands[static_cast<std::size_t>(b)]; }
  std::span<const Document> all_documents() const { return documents.empty() ? std::span(&all_pairs, 1) : documents; }
  bool any() const { return documents.size() > 1 || banded || !ranges.empty() || mask_count > 0; }
};

// Memory, besides the caller's tensors, that a problem points to. The caller of normal_form() owns it.
struct ProblemMemory {
  KeyRules rules;
  Tensor sink;  // sink logits, converted to the dtype of lse if the caller's tensor has another dtype
  Tensor listed_blocks;  // [*,N, blocks of queries, blocks of keys] bool: which blocks Mask::blocks lists; extents are 1 where the lists are shared
  Tensor rule_blocks;    // in the same form: the blocks to which the score rule does not give -infinity
  Distances distances;
  Tensor relative_bias;  // [N,L]: the bias of each head at each of the L distances
  Tensor sink_tangent, relative_bias_tangent;  // tangents of `sink` and of `relative_bias`, with their shapes and dtypes
};

// For a problem that is a part of a larger one: the indices, in the larger problem, of the part's first sequence, query head, query and key. The random
// generator of dropout uses indices of the larger problem.
struct DropoutOrigin {
  std::int64_t b = 0, n = 0, t = 0, s = 0;
};

struct DropoutRule {
  double p = 0;
  std::uint64_t seed = 0;
  ConstTensorView keep;  // keep bits [*,N,T,S]; absent: the random generator decides which pairs dropout keeps
  DropoutOrigin origin = {};
  bool active() const { return p > 0 || keep; }
};

struct Problem {
  DType dtype = DType::f32;          // dtype of q and the outputs
  DType key_dtype = DType::f32;      // dtype of k and v
  Shape lead;                        // the leading dimensions (*); b is the row-major index of a sequence in them
  std::int64_t batch = 0;            // number of sequences: product of `lead`
  std::int64_t heads = 0, kv_heads = 0;
  std::int64_t queries = 0, keys = 0;
  std::int64_t qk_width = 0, v_width = 0;
  double scale = 1, softcap = 0;
  ScoreRule score_rule;                 // a function of the caller that replaces scaled scores, before softcap, bias and masks; may be absent
  bool native = false;                  // true: q, k and v are bfloat16 and may be multiplied by bfloat16 instructions
  const KeyRules* rules = nullptr;      // points into the ProblemMemory of normal_form()
  // The documents of the tensors below: all documents of the caller's problem, or a single document after part_of().
  std::span<const Document> documents;
  ConstTensorView bias;              // bias of each pair [*,N,T,S], or absent
  // [N,L] in the dtype of lse, or absent. A pair uses element Band::distance_origin + s - t. `bias` is then absent.
  ConstTensorView relative_bias;
  ConstTensorView sink;              // [*,N,T,1] in the dtype of lse, or absent
  DropoutRule dropout;
  EmptyRows empty_rows = EmptyRows::zero;
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;

  std::int64_t kv_head(std::int64_t n) const { return n / (heads / kv_heads); }
  bool packed() const { return documents.size() > 1; }
  KeySet key_set(std::int64_t b, std::int64_t first_head, const Document& document) const;
  void place(std::int64_t b, std::int64_t first_head, const Document& document, KeySet& set) const;  // sets all members of `set` except row_kinds
};

// Every view has three more dimensions than `lead`: [*,N,T,H], [*,K,S,H], ...; lse is [*,N,T,1], a scale [*,K,S,1].
struct ForwardProblem : Problem {
  ConstTensorView q, k, v, k_scale, v_scale;  // scales: present if k and v are int8
  // attention_weights is [*,N,T,S]. lse and attention_weights are computed only if present.
  TensorView out, lse, attention_weights;

  // Calls of_rows(view) for each tensor with one row for each query, of_keys(view) for each tensor with one row for each key, and of_pairs(view) for each
  // tensor [*,N,T,S].
  template <class Rows, class Keys, class Pairs>
  void visit(const Rows& of_rows, const Keys& of_keys, const Pairs& of_pairs) {
    of_rows(q), of_rows(out), of_rows(lse), of_keys(k), of_keys(v), of_keys(k_scale), of_keys(v_scale), of_pairs(attention_weights);
  }
};

struct BackwardProblem : Problem {
  ConstTensorView q, k, v, out, lse, d_out;
  TensorView d_q, d_k, d_v;  // absent: not computed
  // [*,N,T,S] with the strides of the caller's tensor. The gradients of positions that share memory are summed.
  TensorView d_bias;
  TensorView d_bias_given;   // the caller's d_bias in its given shape; the backward pass sets it to zero first
  // Gradient of the relative bias, float64 [N,L]. The backward pass writes every element.
  TensorView d_relative_bias;
  TensorView d_sink;         // float64 [*,N,T,1], set to 0 before the pass; receives the gradient of each row's sink logit
  // float64 and contiguous, set to 0 before the pass. [B,N,G] receives the sums of each sequence, or [1,N,G] the sums over all sequences.
  TensorView d_score_rule;
  // True if lse and out were computed from more keys than this problem has. The backward pass then uses lse and out unchanged in p = exp(score - lse) and delta
  // = <d_out, out>. Otherwise it corrects the rounding of lse and out by the row's exact sums. If the keys are divided into several such parts, only one part
  // has the sink.
  bool part_of_keys = false;

  // Returns the address of the sums for the score rule's gradients, for sequence b from query head n on, or nullptr if these gradients are not computed.
  double* score_rule_sums(std::int64_t b, std::int64_t n) const {
    return d_score_rule ? d_score_rule.data<double>() + ((d_score_rule.extent(0) > 1 ? b : 0) * heads + n) * score_rule.gradient_count : nullptr;
  }

  template <class Rows, class Keys, class Pairs>
  void visit(const Rows& of_rows, const Keys& of_keys, const Pairs& of_pairs) {
    of_rows(q), of_rows(out), of_rows(lse), of_rows(d_out), of_rows(d_q), of_rows(d_sink), of_keys(k), of_keys(v), of_keys(d_k), of_keys(d_v),
        of_pairs(d_bias);
  }
};

// Tangents of the inputs of a problem, in the shapes of the inputs. An absent tangent means zeros.
struct Tangents {
  ConstTensorView q, k, v;
  ConstTensorView bias;           // [*,N,T,S]
  ConstTensorView relative_bias;  // [N,L]
  ConstTensorView sink;           // tangent of the sink logits, [*,N,T,1] in the dtype of lse

  template <class Rows, class Keys, class Pairs>
  void visit(const Rows& of_rows, const Keys& of_keys, const Pairs& of_pairs) {
    of_rows(q), of_rows(sink), of_keys(k), of_keys(v), of_pairs(bias);
  }
};

struct JvpProblem : Problem {
  ConstTensorView q, k, v, out, lse;
  Tangents tangents;
  TensorView out_tangent, lse_tangent;  // lse_tangent is [*,N,T,1], or absent

  template <class Rows, class Keys, class Pairs>
  void visit(const Rows& of_rows, const Keys& of_keys, const Pairs& of_pairs) {
    of_rows(q), of_rows(out), of_rows(lse), of_rows(out_tangent), of_rows(lse_tangent), of_keys(k), of_keys(v);
    tangents.visit(of_rows, of_keys, of_pairs);
  }
};

// The gradient of the backward pass. Let L be a loss that depends on the results of the backward pass. `tangents` are the gradients of L with respect to these
// results; d_q, d_k, ... receive the gradients of L with respect to the inputs of the backward pass.
struct BackwardBackwardProblem : BackwardProblem {
  Tangents tangents;
  TensorView d_d_out;  // absent: not computed

  template <class Rows, class Keys, class Pairs>
  void visit(const Rows& of_rows, const Keys& of_keys, const Pairs& of_pairs) {
    BackwardProblem::visit(of_rows, of_keys, of_pairs);
    of_rows(d_d_out);
    tangents.visit(of_rows, of_keys, of_pairs);
  }
};

struct MapsProblem : Problem {
  ConstTensorView q, k, k_scale;
  MapValue value = MapValue::probability;

  // Returns whether the map ignores the mask. Maps of scores before the bias do: they have a score for masked pairs too.
  bool unmasked() const { return value == MapValue::scaled_score || value == MapValue::capped_score; }

  template <class Rows, class Keys, class Pairs>
  void visit(const Rows& of_rows, const Keys& of_keys, const Pairs&) {
    of_rows(q), of_keys(k), of_keys(k_scale);
  }
};

// A row of a map. It is valid only during the call of the RowConsumer that receives it.
struct MapRow {
  std::int64_t index;              // index of the query in the list of requested queries
  std::span<const double> values;  // [S]
  // Attention weights are 0 outside of `keys`. The range is empty if the row has no positive attention weight.
  KeyRange keys;
  double entropy;                  // entropy of the row's attention weights, -sum p log p, in nats
  double sink = 0;                 // attention weight of the sink, computed as exp(sink - lse), because 1 - sum p would lose digits
};

// A function that is called with the row of each requested query, in the order of the request.
using RowConsumer = std::function<void(const MapRow& row)>;

// One head of one sequence, as a matrix [rows, columns], in a view of the normal form.
template <class T>
struct HeadSlice {
  T* data;
  std::int64_t row_stride, column_stride;
  T& operator()(std::int64_t row, std::int64_t column) const { return data[row * row_stride + column * column_stride]; }
};

// Returns the offset of head n of sequence b, in elements.
template <class Void>
std::int64_t head_offset(const BasicTensorView<Void>& view, std::int64_t b, std::int64_t n) {
  const int lead = view.rank() - 3;
  std::int64_t offset = n * view.strides()[lead];
  for (int axis = lead - 1; axis > 0; --axis) {
    offset += b % view.shape()[axis] * view.strides()[axis];
    b /= view.shape()[axis];
  }
  return lead > 0 ? offset + b * view.strides()[0] : offset;  // no division for the outermost axis
}

template <class T, class Void>
HeadSlice<T> head_slice(const BasicTensorView<Void>& view, std::int64_t b, std::int64_t n) {
  // Booleans are read as bytes: any non-zero byte is true.
  return {static_cast<T*>(view.data()) + head_offset(view, b, n), view.stride(-2), view.stride(-1)};
}

// Sets all members of `set` except row_kinds, for the heads from first_head on, in one document of sequence b.
inline void Problem::place(std::int64_t b, std::int64_t first_head, const Document& document, KeySet& set) const {
  const std::int64_t t = document.queries.first, s = document.keys.first;
  set.queries = document.queries.last - t, set.keys = document.keys.last - s;
  const Band& band = rules->band(b, document);
  set.banded = rules->banded, set.lower = band.lower, set.upper = band.upper;
  set.range_per_query = rules->range_per_query, set.key_position = s;
  if (!rules->ranges.empty()) set.ranges = rules->ranges.data() + (set.range_per_query ? b * rules->queries + t : b);
  set.mask_count = rules->mask_count;
  for (int i = 0; i < set.mask_count; ++i) {
    const DenseMask& mask = rules->masks[static_cast<std::size_t>(i)];
    const auto slice = head_slice<const std::uint8_t>(mask.tensor, b, first_head);
    BooleanMask& own = set.masks[i] = {.head = mask.tensor.stride(-3), .row = slice.row_stride, .column = slice.column_stride, .attend = mask.attend};
    own.listed_queries = mask.listed.queries, own.listed_keys = mask.listed.keys;
    const std::int64_t row = own.row_of_query(t), column = own.column_of_key(s);
    own.data = slice.data + row * slice.row_stride + column * slice.column_stride;
    if (own.listed()) own.query_position = t - row * own.listed_queries, own.key_position = s - column * own.listed_keys;
  }
}

inline KeySet Problem::key_set(std::int64_t b, std::int64_t first_head, const Document& document) const {
  KeySet set;
  place(b, first_head, document, set);
  return set;
}

// Returns the document that query t belongs to.
inline const Document& document_of(const Problem& problem, std::int64_t t) {
  return *std::partition_point(problem.documents.begin(), problem.documents.end(), [&](const Document& d) { return d.queries.last <= t; });
}

// Returns the index in a row of Problem::relative_bias for query t and key s, both in `document`, of sequence b.
inline std::int64_t relative_index(const Problem& problem, std::int64_t b, const Document& document, std::int64_t t, std::int64_t s) {
  return problem.rules->band(b, document).distance_origin + (s - document.keys.first) - (t - document.queries.first);
}

// Returns the slice of a view [*,N,T,S] that holds the pairs of a document.
template <class View>
View of_pairs(const View& view, const Document& document) {
  return view.slice(-2, document.queries.first, document.queries.last).slice(-1, document.keys.first, document.keys.last);
}

// Returns the problem of one document. Its dropout bits and key ranges still use positions in `problem`.
template <class P>
P part_of(const P& problem, const Document& document) {
  P part = problem;
  const auto cut_rows = [&](auto& view, KeyRange range) {
    if (view) view = view.slice(-2, range.first, range.last);
  };
  const auto cut_pairs = [&](auto& view) {
    if (view) view = of_pairs(view, document);
  };
  part.documents = {&document, 1};
  part.queries = document.queries.last - document.queries.first, part.keys = document.keys.last - document.keys.first;
  cut_pairs(part.bias), cut_pairs(part.dropout.keep), cut_rows(part.sink, document.queries);
  part.visit([&](auto& view) { cut_rows(view, document.queries); }, [&](auto& view) { cut_rows(view, document.keys); }, cut_pairs);
  return part;
}

// Sets attend[s] to 1 if query t of head (b, n) may attend to key s, else to 0. Returns whether there is such a key.
inline bool attended_keys(const Problem& problem, std::int64_t b, std::int64_t n, std::int64_t t, std::vector<std::uint8_t>& attend) {
  attend.assign(static_cast<std::size_t>(problem.keys), 0);
  const Document& document = document_of(problem, t);
  const KeySet set = problem.key_set(b, n, document);
  const std::int64_t row = t - document.queries.first;
  const KeyRange range = key_range(set, row);
  bool any = false;
  for (std::int64_t s = range.first; s < range.last; ++s) {
    const bool attends = masks_attend(set, 0, row, s);
    attend[static_cast<std::size_t>(document.keys.first + s)] = attends ? 1 : 0;
    any |= attends;
  }
  return any;
}

}  // namespace polyhead
