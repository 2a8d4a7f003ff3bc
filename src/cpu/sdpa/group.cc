#include "cpu/sdpa/group.h"

#include <algorithm>
#include <cmath>

#include "core/philox.h"
#include "core/text.h"
#include "cpu/sdpa/sdpa.h"

namespace polyhead::cpu {
namespace {

// The offset in bytes of head n of sequence b.
template <class View>
std::int64_t head_offset(const View& view, std::int64_t b, std::int64_t n) {
  const int lead = view.rank() - 3;
  std::int64_t offset = n * view.strides()[lead];
  for (int axis = lead - 1; axis >= 0 && b != 0; --axis) {
    offset += b % view.shape()[axis] * view.strides()[axis];
    b /= view.shape()[axis];
  }
  return offset * static_cast<std::int64_t>(info(view.dtype()).size);
}

// Finds the kind of each row of the group: masked, or the kind that `mode` gives to an empty row. Returns whether any row is empty.
bool find_row_kinds(const KeySet& set, EmptyRows mode, std::int64_t heads, std::vector<RowKind>& kinds) {
  kinds.assign(static_cast<std::size_t>(heads * set.queries), RowKind::masked);
  bool any_empty = false;
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t t = 0; t < set.queries; ++t) {
      KeyRange range = without_skipped_ends(set, head, t, key_range(set, t));
      while (!range.empty() && !planes_attend(set, head, t, range.first)) ++range.first;
      if (!range.empty()) continue;
      kinds[static_cast<std::size_t>(head * set.queries + t)] = mode == EmptyRows::uniform ? RowKind::uniform : RowKind::unmasked;
      any_empty = true;
    }
  }
  return any_empty;
}

}  // namespace

std::string declines(const Problem& problem) {
  // Outside of 2^-110 to 2^60, multiplying by the scale's power of two or dividing by the cap can under- or overflow in float32.
  const auto outside = [](double x) { return x != 0 && (std::abs(x) < 0x1p-110 || std::abs(x) > 0x1p60); };
  if (problem.dtype == DType::f64 || (!outside(problem.scale) && !outside(problem.softcap))) return {};
  return cat("the scale ", problem.scale, " or the softcap ", problem.softcap, " lies outside of what float32 arithmetic serves: 0, or 2^-110 to 2^60");
}

Plane plane_of(const ConstTensorView& view, std::int64_t b, std::int64_t n) {
  if (!view) return {};
  return {static_cast<const char*>(view.data()) + head_offset(view, b, n), view.stride(-3), view.stride(-2), view.stride(-1)};
}

MutablePlane plane_of(const TensorView& view, std::int64_t b, std::int64_t n) {
  if (!view) return {};
  return {static_cast<char*>(view.data()) + head_offset(view, b, n), view.stride(-3), view.stride(-2), view.stride(-1)};
}

HeadGroup head_group(const Problem& problem, const MaskBlocks* blocks, const ConstTensorView& q, const ConstTensorView& k,
                     const ConstTensorView& v, std::int64_t b, std::int64_t kv) {
  HeadGroup group;
  const std::int64_t heads = problem.heads / problem.kv_heads, first_head = kv * heads;
  static_cast<KeySet&>(group) = problem.key_set(b, first_head, problem.documents.front());
  if (blocks != nullptr) blocks->attach(b, first_head, group);
  group.dtype = problem.dtype;
  group.heads = heads, group.qk_width = problem.qk_width, group.v_width = problem.v_width;
  group.scale = problem.scale, group.softcap = problem.softcap;
  group.q = plane_of(q, b, first_head), group.k = plane_of(k, b, kv), group.v = plane_of(v, b, kv);
  group.bias = plane_of(problem.bias, b, first_head);
  group.first_query = problem.documents.front().queries.first;
  if (problem.dropout.active()) {
    const DropoutRule& rule = problem.dropout;
    group.dropout = true;
    group.dropout_scale = dropout_scale(rule.p);
    group.keep = plane_of(rule.keep, b, first_head);
    group.drop_below = static_cast<std::uint64_t>(std::llround(rule.p * 0x1p32));
    group.seed[0] = static_cast<std::uint32_t>(rule.seed), group.seed[1] = static_cast<std::uint32_t>(rule.seed >> 32);
    group.batch_index = static_cast<std::uint32_t>(b), group.first_head = static_cast<std::uint32_t>(first_head);
  }
  return group;
}

void apply_empty_rows(const Problem& problem, HeadGroup& group, std::vector<RowKind>& kinds) {
  if (problem.empty_rows == EmptyRows::zero || !problem.rules->any()) return;
  if (find_row_kinds(group, problem.empty_rows, group.heads, kinds)) group.row_kinds = kinds.data();
}

}  // namespace polyhead::cpu
