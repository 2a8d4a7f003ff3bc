// Online softmax (docs/maths.md, eq. 2-4): computes the softmax of a row whose scores become known tile by tile, with a running reference and a running sum of
// exponentials for each row in each key block. Only kernel sources (*_kernel.cc) include this file.
//
// In a key block each row has a reference m, l = sum exp(score - m) and o = sum exp(score - m) v. m starts as the largest score of the row's first tile. If a
// later tile has a score above m + kSlack, m becomes the largest score of that tile, and l and the exponentials are multiplied by exp(m_old - m_new) (Milakov
// and Gimelshein 2018). The exponential is computed of the difference score - m only, so it is exact for scores of any size. join_blocks.h joins the results of
// key blocks.
#pragma once

#include "cpu/sdpa/finish_rows.h"
#include "cpu/sdpa/forward_scratch.h"
#include "cpu/sdpa/join_blocks.h"
#include "cpu/sdpa/softmax.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// A score may exceed the reference by kSlack, measured before the score is multiplied by the scale's factor in [1, 2). Stored exponentials therefore stay below
// e^16, and a row's reference is rarely raised after the first tile of a key block, even if the row's scores have a standard deviation of 5.
constexpr int kSlack = 8;

template <class T>
class OnlineSoftmax {
 public:
  // score_exp is the result of score_exp_of() for the task. `rows` is scratch that holds the references and sums of the rows.
  OnlineSoftmax(const ExpFactor<T>& score_exp, const Scratch<T>& rows) : score_exp_(score_exp), s_(rows) {}

  // Resets the row's reference and sums before the row's first key of a key block.
  void begin(std::int64_t row) {
    set_reference(row, -kInfinity<T>);
    store_vector<T>(Vector<T>{}, s_.sums + row * kLanes<T>);
  }

  // Sets the row's reference to `largest`, or to 0 if `largest` is not above -infinity.
  POLYHEAD_INLINE void set_reference(std::int64_t row, T largest) {
    const bool has_score = largest > -kInfinity<T>;
    s_.reference[row] = has_score ? largest : T{0};
    s_.limit[row] = has_score ? largest + kSlack : -kInfinity<T>;
  }

  // Returns the limit of the row: a score above the limit raises the reference.
  POLYHEAD_INLINE T limit(std::int64_t row) const { return s_.limit[row]; }

  // Sets the row's reference to `largest`, a larger number, and rescales the row's sums. Returns exp(old - new), the factor for the exponentials that were
  // computed with the old reference.
  T raise(std::int64_t row, T largest) {
    const T old = s_.reference[row];
    const bool has_score = s_.limit[row] != -kInfinity<T>;
    set_reference(row, largest);
    const T factor = has_score ? exp_of_negative<T>(broadcast(old - s_.reference[row]), score_exp_)[0] : T{0};
    T* const sums = s_.sums + row * kLanes<T>;
    store_vector<T>(load_vector(sums) * factor, sums);
    return factor;
  }

  // Replaces the row's scores by exp(score - m), and adds the exponentials to the row's sums or, if `first`, sets the sums to them.
  template <int kCount>
  POLYHEAD_INLINE void exponentiate(std::int64_t row, bool first, Vector<T> (&x)[kCount]) {
    exp_of_difference<kCount>(x, s_.reference[row], score_exp_);
    T* const sums = s_.sums + row * kLanes<T>;
    const Vector<T> total = sum_of_vectors<T>(x);
    store_vector<T>(first ? total : load_vector(sums) + total, sums);
  }

  // Does the work of exponentiate() for whole vectors of a tile in memory. It adds in the same order as exponentiate(), so a row's bits do not depend on which
  // of the two functions is called.
  void exponentiate_in_memory(std::int64_t row, std::int64_t begin, std::int64_t end, T* x) {
    Vector<T> total{};
    for (std::int64_t s = begin; s < end; s += kLanes<T>) {
      Vector<T> p[1] = {load_vector(x + s)};
      exp_of_difference<1>(p, s_.reference[row], score_exp_);
      store_vector<T>(p[0], x + s);
      total = s == begin ? p[0] : total + p[0];
    }
    T* const sums = s_.sums + row * kLanes<T>;
    store_vector<T>(load_vector(sums) + total, sums);
  }

  // Sets l to the sums of the key block's exponentials for the rows [first, first + count). l is padded to whole vectors.
  POLYHEAD_INLINE void add_up(std::int64_t first, int count, T* l) {
    for (int i = 0; i < count; ++i) l[i] = sum_of_lanes<T>(load_vector(s_.sums + (first + i) * kLanes<T>));
  }

  // Joins m and l of the current key block with m and l of the rows' earlier key blocks. On entry l holds the sums of the current block. To join o, multiply o
  // of the earlier blocks by `earlier` and o of the current block by `own`. All arrays are padded to whole vectors.
  POLYHEAD_INLINE void join_rows(std::int64_t first, int count, const T* l, T* earlier, T* own) {
    constexpr int kWidth = kLanes<T>;
    T all_m[kMostStripRows + kWidth], all_l[kMostStripRows + kWidth];
    for (int i = 0; i < count; i += kWidth) {
      Vector<T> m = load_vector(s_.m + first + i), sum = load_vector(s_.l + first + i);
      const JoinFactors<T> factors = join<T>(load_vector(s_.reference + first + i), load_vector(l + i), score_exp_, m, sum);
      store_vector<T>(m, all_m + i), store_vector<T>(sum, all_l + i);
      store_vector<T>(factors.earlier, earlier + i), store_vector<T>(factors.own, own + i);
    }
    set_rows(first, count, all_m, all_l);
  }

  // Sets m and l of the rows to the results of their first key block.
  POLYHEAD_INLINE void set_rows(std::int64_t first, int count, const T* m, const T* l) {
    for (int i = 0; i < count; ++i) s_.m[first + i] = m[i], s_.l[first + i] = l[i];
  }

 private:
  const ExpFactor<T> score_exp_;
  const Scratch<T>& s_;
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
