// Block sizes and scratch memory of a jvp. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/arena.h"
#include "cpu/sdpa/dropout.h"
#include "cpu/sdpa/pack.h"
#include "cpu/sdpa/rows.h"
#include "cpu/tile.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
struct JvpScratch {
  T *q, *q_tangent, *k_panels, *k_tangent_panels, *v, *v_tangent, *lines, *p, *t, *softcap_derivative, *curvature;
  T *sums, *out;  // per row: the sums of out' before the division by l, and out
  T *l, *m;       // per row: the sum of p, and the sum of p score'
  RowValues<T>* values;
  Row* rows;
  KeyRange* spans;
  std::uint8_t *bytes, *panel_bytes;
  T *panel_bias, *panel_bias_tangent;
  std::int64_t qk_padded, v_padded, keys, stride;
  // True if the kernel computes `out` again instead of reading it. It does so if `out` is stored in a narrower type than the compute type: the rounding error of
  // such an `out`, multiplied by lse', would be an error of out'.
  bool own_out;

  static std::int64_t layout(const JvpTask& task, void* memory, JvpScratch& s) {
    constexpr std::int64_t kWidth = kLanes<T>;
    s.qk_padded = round_up(task.qk_width, kWidth), s.v_padded = round_up(task.v_width, kWidth);
    s.keys = smaller(backward_block_keys(sizeof(T)), round_up(larger(task.keys, 1), 64));
    s.stride = s.keys + 64 / static_cast<std::int64_t>(sizeof(T));
    s.own_out = task.dtype != kOwnStorage<T>;
    Arena arena(memory);
    arena.allocate(s.q, task.rows * s.qk_padded);
    arena.allocate(s.q_tangent, task.tangents.q.data != nullptr ? task.rows * s.qk_padded : 0);
    arena.allocate(s.k_panels, s.keys * task.qk_width);
    arena.allocate(s.k_tangent_panels, task.tangents.k.data != nullptr ? s.keys * task.qk_width : 0);
    arena.allocate(s.v, s.keys * s.v_padded);
    arena.allocate(s.v_tangent, task.tangents.v.data != nullptr ? s.keys * s.v_padded : 0);
    arena.allocate(s.lines, larger(kWidth, 2) * larger(task.qk_width, task.v_width));
    arena.allocate(s.p, kStripRows * s.stride);
    arena.allocate(s.t, kStripRows * s.stride);
    arena.allocate(s.softcap_derivative, s.stride);
    arena.allocate(s.curvature, s.stride);
    arena.allocate(s.sums, task.rows * s.v_padded);
    arena.allocate(s.out, s.own_out ? task.rows * s.v_padded : 0);
    arena.allocate(s.l, task.rows);
    arena.allocate(s.m, task.rows);
    arena.allocate(s.values, task.rows);
    arena.allocate(s.rows, task.rows);
    arena.allocate(s.spans, task.rows);
    arena.allocate(s.bytes, s.keys + kKeepMargin);
    arena.allocate(s.panel_bytes, KeySet::kMostMasks * kStripRows * kPanelKeys<T>);
    arena.allocate(s.panel_bias, task.bias.data != nullptr ? kStripRows * kPanelKeys<T> : 0);
    arena.allocate(s.panel_bias_tangent, task.tangents.bias.data != nullptr ? kStripRows * kPanelKeys<T> : 0);
    return arena.used();
  }
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
