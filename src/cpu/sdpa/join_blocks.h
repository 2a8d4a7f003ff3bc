// Joins the results of a row's key blocks (docs/maths.md, eq. 24). A key block has a reference m, l = sum exp(score - m) and o = sum exp(score - m) v. The result
// (m_b, l_b, o_b) of each key block, from the first to the last, is joined to the result (m, l, o) of the blocks before it:
//   m' = max(m, m_b),   l' = l exp(m - m') + l_b exp(m_b - m'),   o' = o exp(m - m') + o_b exp(m_b - m')
// forward_kernel.cc joins the key blocks that one task computes, and merge_kernel.cc the key blocks of several tasks. Both call join() below and join_values() of
// cpu/tile.h, so that the bits are the same. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/elementary.h"
#include "cpu/tile.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Factors that join o: the new o is earlier * (o of the earlier key blocks) + own * (o of the current key block).
template <class T>
struct JoinFactors {
  Vector<T> earlier, own;
};

// Joins m and l of two results; each lane is a row. A key block in which all scores are -infinity has block_l = 0 and changes nothing. For a row's first block
// with a larger score the factors of o are 0 and 1. So the block's m, l and o become the result unchanged, and a NaN of v that the row attends to stays NaN.
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
