// Joins the results of a row's key blocks (docs/maths.md, eq. 24). A key block has its own reference m, its l = sum exp(score - m) and
// its o = sum exp(score - m) v. In the order of the blocks, from the first to the last key:
//   m' = max(m, m_b),   l' = l exp(m - m') + l_b exp(m_b - m'),   o' = o exp(m - m') + o_b exp(m_b - m')
// forward_kernel.cc joins the blocks that one task visits, merge_kernel.cc those of several tasks, with the same functions, join()
// and join_values() of cpu/tile.h, and so with the same bits. For kernel sources only.
#pragma once

#include "cpu/elementary.h"
#include "cpu/tile.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// The factors of o of the earlier key blocks, and of o of the current block.
template <class T>
struct JoinFactors {
  Vector<T> earlier, own;
};

// Joins m and l; each lane is a row. A block without a score above -infinity has block_l = 0 and changes nothing. The first block with
// such a score is taken as it is. The factors of o are then 0 and 1, so a NaN of v that a row attends to stays.
template <class T>
POLYHEAD_INLINE JoinFactors<T> join(Vector<T> block_m, Vector<T> block_l, const ExpFactor<T>& score_exp, Vector<T>& m, Vector<T>& l) {
  const Vector<T> zero{}, one = broadcast(T{1});
  const Vector<T> difference = block_m - m;
  const Vector<T> less = exp_of_negative<T>(difference > zero ? -difference : difference, score_exp);
  JoinFactors<T> factors{difference > zero ? less : one, difference > zero ? one : less};
  factors.earlier = l == zero ? zero : factors.earlier, factors.own = l == zero ? one : factors.own;
  factors.earlier = block_l == zero ? one : factors.earlier, factors.own = block_l == zero ? zero : factors.own;
  m = block_l == zero ? m : (l == zero ? block_m : (difference > zero ? block_m : m));
  l = multiply_add<T>(l, factors.earlier, block_l * factors.own);
  return factors;
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
