// From a problem to the data of a kernel's task.
#pragma once

#include <vector>

#include "core/parallel.h"
#include "cpu/sdpa/mask_blocks.h"
#include "cpu/sdpa/task.h"
#include "problem/problem.h"

namespace polyhead::cpu {

// The group of key/value head `kv` of sequence b, in a problem of one document. blocks == nullptr: no block of a mask is skipped.
HeadGroup head_group(const Problem& problem, const MaskBlocks* blocks, const ConstTensorView& q, const ConstTensorView& k,
                     const ConstTensorView& v, std::int64_t b, std::int64_t kv);

// Finds the empty rows of a group that SdpaOptions::empty_rows fills. `kinds` is memory that lives as long as the group is used.
void apply_empty_rows(const Problem& problem, HeadGroup& group, std::vector<RowKind>& kinds);

// A view [*,N,rows,columns] of sequence b, from head n on.
Plane plane_of(const ConstTensorView& view, std::int64_t b, std::int64_t n);
MutablePlane plane_of(const TensorView& view, std::int64_t b, std::int64_t n);

// f(part of the problem) for each document. Documents run at the same time, each on threads of its own, unless they must keep their order.
template <class P, class F>
void for_each_document(const P& p, bool in_order, const F& f) {
  const auto count = static_cast<std::int64_t>(p.documents.size());
  parallel_for(count, in_order ? count : 1, p.executor, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t d = first; d < last; ++d) f(part_of(p, p.documents[static_cast<std::size_t>(d)]));
  });
}

}  // namespace polyhead::cpu
