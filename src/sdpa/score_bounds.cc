#include "sdpa/score_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace polyhead {
namespace {

constexpr std::int64_t kMostElements = 512;  // a load from more elements of a table than this has unknown bounds

// Bounds of the numbers in a register, rounded as the kernels round them: rounding keeps the order of numbers, so a bound may be computed from bounds.
template <class T>
struct Bounds {
  T low, high;
  bool may_be_nan;

  static Bounds unknown() { return {-std::numeric_limits<T>::infinity(), std::numeric_limits<T>::infinity(), true}; }
  bool finite() const { return !may_be_nan && std::isfinite(low) && std::isfinite(high); }
  bool may_be_true() const { return may_be_nan || low != 0 || high != 0; }
  bool may_be_false() const { return low <= 0 && high >= 0; }
};

// Bounds of finite numbers. Subnormal numbers count as unknown, because a processor may be set to replace them by 0.
template <class T>
Bounds<T> bounds_of(T low, T high) {
  const auto usable = [](T x) { return x == 0 || std::isnormal(x); };
  return usable(low) && usable(high) ? Bounds<T>{low, high, false} : Bounds<T>::unknown();
}

template <class T>
Bounds<T> truth(bool may_be_true, bool may_be_false) {
  return {may_be_false ? T{0} : T{1}, may_be_true ? T{1} : T{0}, false};
}

// Bounds of a product or a quotient, which lie at the corners of the operands' bounds.
template <class T, class F>
Bounds<T> at_corners(const Bounds<T>& a, const Bounds<T>& b, const F& f) {
  if (!a.finite() || !b.finite()) return Bounds<T>::unknown();
  const T corners[] = {f(a.low, b.low), f(a.low, b.high), f(a.high, b.low), f(a.high, b.high)};
  for (int i = 0; i < 4; ++i) {
    if (corners[i] == 0 && (i < 2 ? a.low : a.high) != 0 && (i % 2 == 0 ? b.low : b.high) != 0) return Bounds<T>::unknown();  // underflow
  }
  return bounds_of(*std::min_element(corners, corners + 4), *std::max_element(corners, corners + 4));
}

// Bounds of `count` elements of a table, `stride` apart.
template <class T, class Element>
Bounds<T> elements(const Element* from, std::int64_t count, std::int64_t stride) {
  T low = std::numeric_limits<T>::infinity(), high = -low;
  bool usable = true;
  for (std::int64_t i = 0; i < count; ++i) {
    const T x = static_cast<T>(from[i * stride]), magnitude = std::abs(x);
    usable &= magnitude == 0 || (magnitude >= std::numeric_limits<T>::min() && magnitude <= std::numeric_limits<T>::max());
    low = x < low ? x : low, high = x > high ? x : high;
  }
  return usable ? Bounds<T>{low, high, false} : Bounds<T>::unknown();
}

// Bounds of the elements of a table at indices within the given bounds. At most one index may differ between pairs.
template <class T>
Bounds<T> elements(const ConstTensorView& table, const Bounds<T>* const* indices) {
  std::int64_t offset = 0, count = 1, stride = 0;
  for (int axis = 0; axis < table.rank(); ++axis) {
    const T extent = static_cast<T>(table.extent(axis));
    Bounds<T> index = *indices[axis];
    if (index.finite() && index.high < 0) index = bounds_of(index.low + extent, index.high + extent);
    if (!index.finite() || index.low < 0 || index.high >= extent) return Bounds<T>::unknown();
    const auto first = static_cast<std::int64_t>(index.low), last = static_cast<std::int64_t>(index.high);
    offset += first * table.stride(axis);
    if (first == last) continue;
    if (count > 1 || last - first >= kMostElements) return Bounds<T>::unknown();
    count = last - first + 1, stride = table.stride(axis);
  }
  return table.dtype() == DType::f64 ? elements<T>(static_cast<const double*>(table.data()) + offset, count, stride) : elements<T>(static_cast<const float*>(table.data()) + offset, count, stride);
}

template <class T>
Bounds<T> positions(std::int64_t first, std::int64_t count) {
  constexpr std::int64_t kExact = std::int64_t{1} << std::numeric_limits<T>::digits;
  if (first + count > kExact) return Bounds<T>::unknown();
  return bounds_of(static_cast<T>(first), static_cast<T>(first + count - 1));
}

// Bounds of the register that an instruction writes; `of` are the bounds of the registers before it.
template <class T>
Bounds<T> bounds_of(const ScoreInstruction& instruction, const Bounds<T>* of, const std::vector<ConstTensorView>& tables, const ScoreTile& tile) {
  const auto at = [&](std::int32_t number) -> const Bounds<T>& { return of[number < 0 ? 0 : number]; };
  const Bounds<T>&a = at(instruction.a), &b = at(instruction.b), &c = at(instruction.c), &d = at(instruction.d);
  switch (instruction.op) {
    case ScoreOp::constant: return bounds_of(static_cast<T>(instruction.value), static_cast<T>(instruction.value));
    case ScoreOp::batch: return positions<T>(tile.batch, 1);
    case ScoreOp::head: return positions<T>(tile.head, 1);
    case ScoreOp::query: return positions<T>(tile.first_query, tile.rows);
    case ScoreOp::key: return positions<T>(tile.first_key, tile.keys);
    case ScoreOp::load: {
      const Bounds<T>* const indices[] = {&a, &b, &c, &d};
      return elements(tables[static_cast<std::size_t>(instruction.table)], indices);
    }
    case ScoreOp::add: return a.finite() && b.finite() ? bounds_of(a.low + b.low, a.high + b.high) : Bounds<T>::unknown();
    case ScoreOp::subtract: return a.finite() && b.finite() ? bounds_of(a.low - b.high, a.high - b.low) : Bounds<T>::unknown();
    case ScoreOp::multiply: return at_corners(a, b, [](T x, T y) { return x * y; });
    case ScoreOp::divide: return b.low > 0 || b.high < 0 ? at_corners(a, b, [](T x, T y) { return x / y; }) : Bounds<T>::unknown();
    case ScoreOp::maximum: return a.finite() && b.finite() ? bounds_of(std::max(a.low, b.low), std::max(a.high, b.high)) : Bounds<T>::unknown();
    case ScoreOp::minimum: return a.finite() && b.finite() ? bounds_of(std::min(a.low, b.low), std::min(a.high, b.high)) : Bounds<T>::unknown();
    case ScoreOp::negate: return a.finite() ? bounds_of(-a.high, -a.low) : Bounds<T>::unknown();
    case ScoreOp::absolute: return a.finite() ? bounds_of(a.may_be_false() ? T{0} : std::min(std::abs(a.low), std::abs(a.high)), std::max(std::abs(a.low), std::abs(a.high))) : Bounds<T>::unknown();
    case ScoreOp::floor: return a.finite() ? bounds_of(std::floor(a.low), std::floor(a.high)) : Bounds<T>::unknown();
    case ScoreOp::less: return truth<T>(a.low < b.high, a.may_be_nan || b.may_be_nan || a.high >= b.low);
    case ScoreOp::less_equal: return truth<T>(a.low <= b.high, a.may_be_nan || b.may_be_nan || a.high > b.low);
    case ScoreOp::equal: return truth<T>(a.low <= b.high && b.low <= a.high, !a.finite() || !b.finite() || a.low != a.high || b.low != b.high || a.low != b.low);
    case ScoreOp::logical_and: return truth<T>(a.may_be_true() && b.may_be_true(), a.may_be_false() || b.may_be_false());
    case ScoreOp::logical_or: return truth<T>(a.may_be_true() || b.may_be_true(), a.may_be_false() && b.may_be_false());
    case ScoreOp::logical_not: return truth<T>(a.may_be_false(), a.may_be_true());
    case ScoreOp::select:
      if (!a.may_be_false()) return b;
      if (!a.may_be_true()) return c;
      return {std::min(b.low, c.low), std::max(b.high, c.high), b.may_be_nan || c.may_be_nan};
    default: return Bounds<T>::unknown();
  }
}

}  // namespace

ScoreBounds::ScoreBounds(const ScoreProgramCode& code, std::int32_t number) : instructions_(code.instructions), number_(number) {
  for (const ScoreTable& table : code.tables) tables_.push_back(table.values);
  std::vector<bool> is_choice(instructions_.size()), is_condition(instructions_.size());
  is_choice[static_cast<std::size_t>(number)] = true;
  for (std::int32_t i = number; i >= 0; --i) {
    if (!is_choice[static_cast<std::size_t>(i)]) continue;
    const ScoreInstruction& x = instruction(i);
    if (x.op != ScoreOp::select) {
      choices_.push_back(i);
      continue;
    }
    selections_.push_back(i);
    is_condition[static_cast<std::size_t>(x.a)] = is_choice[static_cast<std::size_t>(x.b)] = is_choice[static_cast<std::size_t>(x.c)] = true;
  }
  bool of_scores = false;
  for (auto i = static_cast<std::int32_t>(instructions_.size()); i-- > 0;) {
    if (!is_condition[static_cast<std::size_t>(i)]) continue;
    const ScoreInstruction& x = instruction(i);
    by_batch_ = by_batch_ || x.op == ScoreOp::batch, by_head_ = by_head_ || x.op == ScoreOp::head, of_scores = of_scores || x.op == ScoreOp::score;
    const std::int32_t operands[] = {x.a, x.b, x.c, x.d};
    const int count = x.op == ScoreOp::load ? tables_[static_cast<std::size_t>(x.table)].rank() : kScoreOpInfo[static_cast<int>(x.op)].operands;
    for (int j = 0; j < count; ++j) is_condition[static_cast<std::size_t>(operands[j])] = true;
    conditions_.push_back(i);
  }
  decides_ = !selections_.empty() && !of_scores;
  std::reverse(selections_.begin(), selections_.end()), std::reverse(conditions_.begin(), conditions_.end());
}

const ScoreInstruction* ScoreBounds::chosen(const ScoreTile& tile) const {
  const std::int32_t choice = !decides_ ? -1 : tile.float64 ? choose<double>(tile) : choose<float>(tile);
  return choice < 0 ? nullptr : &instruction(choice);
}

template <class T>
std::int32_t ScoreBounds::choose(const ScoreTile& tile) const {
  Bounds<T> bounds[kMostScoreInstructions];
  for (const std::int32_t number : conditions_) bounds[number] = bounds_of(instruction(number), bounds, tables_, tile);
  std::int32_t choices[kMostScoreInstructions];  // for each selection, the register that it chooses for all pairs; -1: different ones
  const auto choice_of = [&](std::int32_t number) { return instruction(number).op == ScoreOp::select ? choices[number] : number; };
  for (const std::int32_t number : selections_) {
    const ScoreInstruction& x = instruction(number);
    const Bounds<T>& condition = bounds[x.a];
    choices[number] = !condition.may_be_false() ? choice_of(x.b) : !condition.may_be_true() ? choice_of(x.c) : choice_of(x.b) == choice_of(x.c) ? choice_of(x.b) : -1;
  }
  return choice_of(number_);
}

}  // namespace polyhead
