#include "cpu/sdpa/group.h"

#include <algorithm>
#include <cmath>

#include "core/philox.h"
#include "core/text.h"
#include "cpu/sdpa/sdpa.h"
#include "cpu/select.h"

namespace polyhead::cpu {

std::string declines(const Problem& problem) {
  // If the scale or the softcap lies outside of 2^-110 to 2^60, float32 can underflow or overflow when a kernel multiplies by the scale's power of two or
  // divides by the softcap.
  const auto outside = [](double x) { return x != 0 && (std::abs(x) < 0x1p-110 || std::abs(x) > 0x1p60); };
  if (problem.dtype == DType::f64 || (!outside(problem.scale) && !outside(problem.softcap))) return {};
  return cat("the scale ", problem.scale, " or the softcap ", problem.softcap, " lies outside of the range that float32 kernels support: 0, or 2^-110 to 2^60");
}

void set_sizes(const Problem& problem, HeadGroup& group) {
  group.dtype = problem.dtype, group.key_dtype = problem.key_dtype;
  group.native = problem.native && kernels_of<ForwardKernels>(current_kernels_for_pairs()).native;
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
  if (problem.score_rule) group.rule = &problem.score_rule;
  group.rule_query = problem.documents.front().queries.first, group.rule_key = problem.documents.front().keys.first;
  const DropoutRule& rule = problem.dropout;
  group.dropout_query = rule.origin.t + problem.documents.front().queries.first, group.dropout_key = rule.origin.s + problem.documents.front().keys.first;
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
  group.rule_batch = b, group.rule_head = first_head;
  if (blocks != nullptr) blocks->attach(b, kv, group);
  group.q = head_view(q, b, first_head), group.k = head_view(k, b, kv);
  group.bias = problem.relative_bias ? relative_bias_view(problem, problem.relative_bias, b, first_head, problem.documents.front())
                                     : head_view(problem.bias, b, first_head);
  group.sink = head_view(problem.sink, b, first_head);
  group.keep = head_view(problem.dropout.keep, b, first_head);
  group.batch_index = static_cast<std::uint32_t>(problem.dropout.origin.b + b), group.first_head = static_cast<std::uint32_t>(problem.dropout.origin.n + first_head);
}

void fill_other_keys(const TensorView& rows, KeyRange keys, double value) {
  if (keys.first > 0) fill(rows.slice(-1, 0, keys.first), value);
  if (keys.last < rows.extent(-1)) fill(rows.slice(-1, keys.last, rows.extent(-1)), value);
}

}  // namespace polyhead::cpu
