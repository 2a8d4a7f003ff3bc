// Functions that build the HeadGroup of a kernel's task (the sizes, tensors and mask of the query heads that share a key/value head) from a problem.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/parallel.h"
#include "cpu/sdpa/mask_blocks.h"
#include "cpu/sdpa/task.h"
#include "problem/problem.h"

namespace polyhead::cpu {

// Sets the members that are equal for all tasks of a problem: sizes, scale, score rule and dropout.
void set_sizes(const Problem& problem, HeadGroup& group);

// Sets the members for key/value head `kv` of sequence b. If blocks is nullptr, every block of a mask counts as partial, and no empty row attends to all keys.
void set_heads(const Problem& problem, const MaskBlocks* blocks, const ConstTensorView& q, const ConstTensorView& k, std::int64_t b,
               std::int64_t kv, HeadGroup& group);

template <class Void>
Void* element(const BasicTensorView<Void>& view, std::int64_t offset) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return static_cast<Byte*>(view.data()) + offset * static_cast<std::int64_t>(info(view.dtype()).size);
}

// Returns the view [head, row, column] of sequence b in a view [*,N,rows,columns], from head n on.
template <class Void>
BasicHeadView<Void> head_view(const BasicTensorView<Void>& view, std::int64_t b, std::int64_t n) {
  if (!view) return {};
  return {element(view, head_offset(view, b, n)), view.stride(-3), view.stride(-2), view.stride(-1)};
}

// Returns the values of a relative bias [N,L], or their gradient, as a view over the document's pairs, from head n on.
template <class Void>
BasicHeadView<Void> relative_bias_view(const Problem& problem, const BasicTensorView<Void>& values, std::int64_t b, std::int64_t n, const Document& document) {
  const std::int64_t head = values.stride(0), column = values.stride(1);
  return {element(values, n * head + problem.rules->band(b, document).distance_origin * column), head, -column, column};
}

// Returns the argument `grain` of parallel_for() for indices that cost `work` multiply-adds each.
inline std::int64_t grain_of(double work) {
  return static_cast<std::int64_t>(std::clamp(kLeastPieceNanoseconds * kMultiplyAddsPerNanosecond / std::max(work, 1.0), 1.0, 1e6));
}

// Calls f(document, part, threads) for each document, where `part` is the problem of this document alone. If in_order, documents are computed one after the
// other, each with all threads. Otherwise they are computed in parallel, and `threads` is at least 1 and in proportion to the document's number of pairs.
template <class P, class F>
void for_each_document(const P& p, bool in_order, const F& f) {
  const auto count = static_cast<std::int64_t>(p.documents.size());
  if (count == 0) return;
  const auto pairs_of = [](const Document& d) {
    return static_cast<double>(d.queries.last - d.queries.first) * static_cast<double>(d.keys.last - d.keys.first);
  };
  double pairs = 0;
  for (const Document& d : p.documents) pairs += pairs_of(d);
  const double work =
      pairs / static_cast<double>(count) * static_cast<double>(p.batch * p.heads) * static_cast<double>(p.qk_width + p.v_width);
  const int threads = threads_of(p.executor);
  parallel_for(count, in_order ? count : grain_of(work), p.executor, [&](std::int64_t first, std::int64_t last) {
    for (const Document& d : p.documents.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first)))
      f(d, part_of(p, d), in_order ? threads : std::max(1, static_cast<int>(std::ceil(threads * (pairs_of(d) / std::max(pairs, 1.0))))));
  });
}

// Sets the elements of `rows` [..,S] for keys outside of `keys` to `value`.
void fill_other_keys(const TensorView& rows, KeyRange keys, double value);

}  // namespace polyhead::cpu
