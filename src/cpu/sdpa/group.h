// Builds the HeadGroup of a kernel's task from a problem.
#pragma once

#include <vector>

#include "core/parallel.h"
#include "cpu/sdpa/mask_blocks.h"
#include "cpu/sdpa/task.h"
#include "problem/problem.h"

namespace polyhead::cpu {

// The query heads that share key/value head `kv` in sequence b, for a problem of one document. blocks == nullptr: every block of a mask
// counts as partial.
HeadGroup head_group(const Problem& problem, const MaskBlocks* blocks, const ConstTensorView& q, const ConstTensorView& k,
                     const ConstTensorView& v, std::int64_t b, std::int64_t kv);

// Sets group.row_kinds if the group has empty rows and SdpaOptions::empty_rows is not `zero`. group.row_kinds points into `kinds`.
void apply_empty_rows(const Problem& problem, HeadGroup& group, std::vector<RowKind>& kinds);

// The plane of sequence b, from head n on, of a view [*,N,rows,columns].
Plane plane_of(const ConstTensorView& view, std::int64_t b, std::int64_t n);
MutablePlane plane_of(const TensorView& view, std::int64_t b, std::int64_t n);

// Calls f with the problem of each document: in parallel, or one document after the other if in_order.
template <class P, class F>
void for_each_document(const P& p, bool in_order, const F& f) {
  const auto count = static_cast<std::int64_t>(p.documents.size());
  parallel_for(count, in_order ? count : 1, p.executor, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t d = first; d < last; ++d) f(part_of(p, p.documents[static_cast<std::size_t>(d)]));
  });
}

}  // namespace polyhead::cpu
