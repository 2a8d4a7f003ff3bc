#include "cpu/sdpa/group.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/philox.h"
#include "core/text.h"
#include "cpu/sdpa/sdpa.h"

namespace polyhead::cpu {

std::string declines(const Problem& problem) {
  // Outside of 2^-110 to 2^60, multiplying by the scale's power of two or dividing by the cap can under- or overflow in float32.
  const auto outside = [](double x) { return x != 0 && (std::abs(x) < 0x1p-110 || std::abs(x) > 0x1p60); };
  if (problem.dtype == DType::f64 || (!outside(problem.scale) && !outside(problem.softcap))) return {};
  return cat("the scale ", problem.scale, " or the softcap ", problem.softcap, " lies outside of what float32 arithmetic serves: 0, or 2^-110 to 2^60");
}

Plane plane_of(const ConstTensorView& view, std::int64_t b, std::int64_t n) {
  if (!view) return {};
  const std::int64_t offset = head_offset(view, b, n) * static_cast<std::int64_t>(info(view.dtype()).size);
  return {static_cast<const char*>(view.data()) + offset, view.stride(-3), view.stride(-2), view.stride(-1)};
}

MutablePlane plane_of(const TensorView& view, std::int64_t b, std::int64_t n) {
  if (!view) return {};
  const std::int64_t offset = head_offset(view, b, n) * static_cast<std::int64_t>(info(view.dtype()).size);
  return {static_cast<char*>(view.data()) + offset, view.stride(-3), view.stride(-2), view.stride(-1)};
}

namespace {

template <class P, class View>
P plane_of_distances(const Problem& problem, const View& values, std::int64_t b, std::int64_t n, const Document& document) {
  const std::int64_t column = values.stride(-1),
                     offset = n * values.stride(0) + problem.rules->band(b, document).distance_origin * column;
  using Byte = std::conditional_t<std::is_same_v<P, Plane>, const char, char>;
  return {static_cast<Byte*>(values.data()) + offset * static_cast<std::int64_t>(info(values.dtype()).size), values.stride(0), -column, column};
}

}  // namespace

Plane relative_plane(const Problem& problem, const ConstTensorView& values, std::int64_t b, std::int64_t n, const Document& document) {
  return plane_of_distances<Plane>(problem, values, b, n, document);
}

MutablePlane relative_plane(const Problem& problem, const TensorView& values, std::int64_t b, std::int64_t n, const Document& document) {
  return plane_of_distances<MutablePlane>(problem, values, b, n, document);
}

void set_sizes(const Problem& problem, HeadGroup& group) {
  group.dtype = problem.dtype, group.key_dtype = problem.key_dtype;
  group.bias_dtype = problem.relative_bias ? problem.relative_bias.dtype() : problem.dtype;
  group.heads = problem.heads / problem.kv_heads, group.qk_width = problem.qk_width, group.v_width = problem.v_width;
  if (problem.scale != 0) {
    int exponent = 0;
    group.scale_factor = 2 * std::abs(std::frexp(problem.scale, &exponent));
    group.scale_power = std::ldexp(problem.scale < 0 ? -1 : 1, exponent - 1);
  } else {
    group.scale_power = 0;
  }
  group.softcap = problem.softcap;
  group.query_position = problem.documents.front().queries.first;
  const DropoutRule& rule = problem.dropout;
  if (!rule.active()) return;
  group.dropout = true;
  group.dropout_scale = dropout_scale(rule.p);
  group.drop_below = static_cast<std::uint64_t>(std::llround(rule.p * 0x1p32));
  group.seed[0] = static_cast<std::uint32_t>(rule.seed), group.seed[1] = static_cast<std::uint32_t>(rule.seed >> 32);
}

void set_heads(const Problem& problem, const MaskBlocks* blocks, const ConstTensorView& q, const ConstTensorView& k, std::int64_t b,
               std::int64_t kv, HeadGroup& group) {
  const std::int64_t first_head = kv * group.heads;
  problem.place(b, first_head, problem.documents.front(), group);
  if (blocks != nullptr) blocks->attach(b, kv, group);
  group.q = plane_of(q, b, first_head), group.k = plane_of(k, b, kv);
  group.bias = problem.relative_bias ? relative_plane(problem, problem.relative_bias, b, first_head, problem.documents.front())
                                     : plane_of(problem.bias, b, first_head);
  group.sink = plane_of(problem.sink, b, first_head);
  group.keep = plane_of(problem.dropout.keep, b, first_head);
  group.batch_index = static_cast<std::uint32_t>(b), group.first_head = static_cast<std::uint32_t>(first_head);
}

void fill_other_keys(const TensorView& rows, KeyRange keys, double value) {
  if (keys.first > 0) fill(rows.slice(-1, 0, keys.first), value);
  if (keys.last < rows.extent(-1)) fill(rows.slice(-1, keys.last, rows.extent(-1)), value);
}

}  // namespace polyhead::cpu
