// The interpreter of score programs. Each step runs over a range of keys of one row, because selecting the operation of a step then takes far less time than
// computing it. The registers of a range stay in the first-level cache.
#include "cpu/elementary.h"
#include "cpu/score_program/kernels.h"
#include "cpu/special.h"
#include "polyhead/score_op.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
struct TermsOf {
  typedef T type __attribute__((vector_size(8 * sizeof(T))));  // NOLINT(modernize-use-using): `using` drops the attribute of a dependent type
};

template <class T>
class Interpreter {
 public:
  Interpreter(const ScoreSteps& steps, const ScoreTile& tile, void* scratch) : steps_(steps), tile_(tile), scratch_(static_cast<char*>(scratch)) {
    for (int i = 0; i < steps.registers; ++i) pointers_[i] = memory_of(i);
  }

  void forward() {
    // If the last step computes a number for each pair, it writes the new scores directly to the tile.
    const bool in_tile = steps_.kinds[steps_.result] == ScoreKind::pair && steps_.result != steps_.score;
    for_each_row([&](std::int64_t row, T* scores) {
      const bool whole = point_to_scores(scores);
      if (in_tile) pointers_[steps_.result] = whole ? scores : memory_of(steps_.result);
      run(steps_.per_row, steps_.per_row_count, row);
      if (whole && in_tile) return;
      if (whole && steps_.result == steps_.score) return;
      for (std::int64_t i = 0; i < count_; ++i) scores[i] = at(steps_.result, i);
    });
  }

  void backward(const T* before, double* sums) {
    for_each_row([&](std::int64_t row, T* d_scores) {
      if (steps_.score >= 0) point_to_scores(before + (d_scores - static_cast<T*>(tile_.scores)));
      run(steps_.per_row, steps_.per_row_count, row);
      for (int i = 0; i < steps_.sum_count && sums != nullptr; ++i) add(steps_.sums[i], d_scores, sums);
      if (!steps_.result_is_one) multiply(d_scores);
    });
  }

 private:
  static constexpr int kWidth = kLanes<T>;

  T* memory_of(std::int32_t number) const { return steps_.places[number] < 0 ? nullptr : reinterpret_cast<T*>(scratch_ + steps_.places[number]); }
  T* of(std::int32_t number) const { return pointers_[number]; }
  bool varies(std::int32_t number) const { return steps_.kinds[number] >= ScoreKind::key; }
  T at(std::int32_t number, std::int64_t i) const { return of(number)[varies(number) ? i : 0]; }

  // Returns how many numbers a step computes.
  std::int64_t count_of(const ScoreStep& step) const { return step.kind == ScoreKind::distance ? count_ + rows_ - 1 : step.kind >= ScoreKind::key ? count_ : 1; }

  // Calls f(row, the row's scores of the range) for each row of each range of keys.
  template <class F>
  POLYHEAD_INLINE void for_each_row(const F& f) {
    run(steps_.per_tile, steps_.per_tile_count, 0);
    const std::int64_t range = steps_.range_bytes / static_cast<std::int64_t>(sizeof(T));
    for (column_ = 0; column_ < tile_.keys; column_ += range) {
      count_ = tile_.keys - column_ < range ? tile_.keys - column_ : range;
      run(steps_.per_range, steps_.per_range_count, 0);
      for (first_row_ = 0; first_row_ < tile_.rows; first_row_ += kMostScoreRows) {
        rows_ = tile_.rows - first_row_ < kMostScoreRows ? tile_.rows - first_row_ : kMostScoreRows;
        shift_distances(0);
        run(steps_.per_distance, steps_.per_distance_count, 0);
        for (std::int64_t i = 0; i < rows_; ++i) {
          shift_distances(rows_ - 1 - i);
          f(first_row_ + i, static_cast<T*>(tile_.scores) + (first_row_ + i) * tile_.row_stride + column_);
        }
      }
    }
  }

  // Makes the registers of the kind `distance` begin with their number `shift`. Number 0 is the distance of the last row and the first key.
  void shift_distances(std::int64_t shift) {
    for (int i = 0; i < steps_.per_distance_count; ++i) {
      const std::int32_t number = steps_.per_distance[i].to;
      pointers_[number] = memory_of(number) + shift;
    }
  }

  // Makes the register of the old score point to the scores. If the scores do not fill whole vectors, it points to old_, a copy that is filled up with zeros.
  // Returns whether the scores fill whole vectors.
  bool point_to_scores(const T* scores) {
    constexpr std::int64_t kVector = kScoreRunBytes / static_cast<std::int64_t>(sizeof(T));
    const bool whole = count_ % kVector == 0;
    if (steps_.score < 0) return whole;
    if (!whole) {
      for (std::int64_t i = 0; i < count_; ++i) old_[i] = scores[i];
      for (std::int64_t i = count_; i % kVector != 0; ++i) old_[i] = 0;
    }
    pointers_[steps_.score] = whole ? const_cast<T*>(scores) : old_;
    return whole;
  }

  // Multiplies the gradients by the derivative of the new score. A gradient of 0, which masked pairs have, stays 0 even if the derivative is NaN.
  void multiply(T* d_scores) const {
    const T* const derivative = of(steps_.result);
    const bool one_number = !varies(steps_.result);
    std::int64_t i = 0;
    for (; i + kWidth <= count_; i += kWidth) {
      const Vector<T> d = load_vector(d_scores + i), factor = one_number ? broadcast(derivative[0]) : load_vector(derivative + i);
      store_vector<T>(d == T{0} ? d : d * factor, d_scores + i);
    }
    for (; i < count_; ++i) d_scores[i] = d_scores[i] == T{0} ? d_scores[i] : d_scores[i] * derivative[one_number ? 0 : i];
  }

  template <class F>
  POLYHEAD_INLINE void unary(const ScoreStep& step, const F& f) {
    const T* const a = of(step.a);
    T* const to = of(step.to);
    const std::int64_t end = count_of(step);
    for (std::int64_t i = 0; i < end; i += kWidth) store_vector<T>(f(load_vector(a + i)), to + i);
  }
  template <class F>
  POLYHEAD_INLINE void binary(const ScoreStep& step, const F& f) {
    const T *const a = of(step.a), *const b = of(step.b);
    const std::int64_t of_a = varies(step.a) ? 1 : 0, of_b = varies(step.b) ? 1 : 0, end = count_of(step);
    T* const to = of(step.to);
    for (std::int64_t i = 0; i < end; i += kWidth) store_vector<T>(f(load_vector(a + i * of_a), load_vector(b + i * of_b)), to + i);
  }
  // Applies f to register a. f computes in float64.
  template <class F>
  POLYHEAD_INLINE void unary_float64(const ScoreStep& step, const F& f) {
    typedef T Some __attribute__((vector_size(sizeof(T) * kLanes<double>), aligned(alignof(T)), may_alias));  // a vector of T with as many lanes as a vector of float64
    const T* const a = of(step.a);
    T* const to = of(step.to);
    const std::int64_t end = count_of(step);
    for (std::int64_t i = 0; i < end; i += kWidth) {
#pragma GCC unroll 2
      for (int j = 0; j < kWidth; j += kLanes<double>)
        *reinterpret_cast<Some*>(to + i + j) = __builtin_convertvector(f(__builtin_convertvector(*reinterpret_cast<const Some*>(a + i + j), Vector<double>)), Some);
    }
  }
  static POLYHEAD_INLINE Vector<T> truth(Vector<Bits<T>> mask) { return mask ? broadcast(T{1}) : Vector<T>{}; }

  void fill(const ScoreStep& step, T value) { store_vector<T>(broadcast(value), of(step.to)); }

  void run(const ScoreStep* steps, int count, std::int64_t row) {
    for (const ScoreStep* step = steps; step != steps + count; ++step) {
      if (step->run != nullptr) {
        if (const ScoreRunFunction function = step->run->functions[sizeof(T) == 8]) {
          call(function, *step->run);
          step += step->run->steps - 1;
          continue;
        }
      }
      step->distance != 0 ? fill_distances(*step) : compute(*step, row);
    }
  }

  void call(ScoreRunFunction function, const ScoreRunSteps& run) const {
    const void* inputs[kMostScoreInstructions];
    void* outputs[kMostScoreInstructions];
    for (int i = 0; i < run.input_count; ++i) inputs[i] = of(run.inputs[i]);
    for (int i = 0; i < run.output_count; ++i) outputs[i] = of(run.outputs[i]);
    function(inputs, outputs, (count_ * static_cast<std::int64_t>(sizeof(T)) + kScoreRunBytes - 1) / kScoreRunBytes);
  }

  // Computes key index - query index, or query index - key index. In float32 the difference is exact up to 2^24.
  void fill_distances(const ScoreStep& step) {
    const std::int64_t first = tile_.first_key + column_ - (tile_.first_query + first_row_ + rows_ - 1), end = count_of(step);
    const Vector<T> lanes = __builtin_convertvector(lane_numbers<T>(), Vector<T>);
    for (std::int64_t i = 0; i < end; i += kWidth) {
      const Vector<T> distance = lanes + static_cast<T>(first + i);
      store_vector<T>(step.distance > 0 ? distance : T{0} - distance, of(step.to) + i);
    }
  }

  void compute(const ScoreStep& step, std::int64_t row) {
    using V = Vector<T>;
    switch (static_cast<ScoreOp>(step.op)) {
      case ScoreOp::constant: return fill(step, static_cast<T>(step.value));
      case ScoreOp::batch: return fill(step, static_cast<T>(tile_.batch));
      case ScoreOp::head: return fill(step, static_cast<T>(tile_.head));
      case ScoreOp::query: return fill(step, static_cast<T>(tile_.first_query + row));
      case ScoreOp::key: {
        const V lanes = __builtin_convertvector(lane_numbers<T>(), V);
        for (std::int64_t i = 0; i < count_; i += kWidth) store_vector<T>(lanes + static_cast<T>(tile_.first_key + column_ + i), of(step.to) + i);
        return;
      }
      case ScoreOp::score: return;  // nothing to compute, because the register already points to the scores
      case ScoreOp::load: return load(step);
      case ScoreOp::add: return binary(step, [](V a, V b) { return a + b; });
      case ScoreOp::subtract: return binary(step, [](V a, V b) { return a - b; });
      case ScoreOp::multiply: return binary(step, [](V a, V b) { return a * b; });
      case ScoreOp::divide: return binary(step, [](V a, V b) { return a / b; });
      case ScoreOp::maximum: return binary(step, [](V a, V b) { return a > b ? a : (b == b ? (a == a ? b : a) : b); });
      case ScoreOp::minimum: return binary(step, [](V a, V b) { return a < b ? a : (b == b ? (a == a ? b : a) : b); });
      case ScoreOp::less: return binary(step, [](V a, V b) { return truth(a < b); });
      case ScoreOp::less_equal: return binary(step, [](V a, V b) { return truth(a <= b); });
      case ScoreOp::equal: return binary(step, [](V a, V b) { return truth(a == b); });
      case ScoreOp::logical_and: return binary(step, [](V a, V b) { return truth((a != T{0}) & (b != T{0})); });
      case ScoreOp::logical_or: return binary(step, [](V a, V b) { return truth((a != T{0}) | (b != T{0})); });
      case ScoreOp::negate: return unary(step, [](V a) { return -a; });
      case ScoreOp::absolute: return unary(step, [](V a) { return a < T{0} ? -a : a; });
      case ScoreOp::square_root: return unary(step, [](V a) {
        for (int i = 0; i < kWidth; ++i) a[i] = sizeof(T) == 8 ? static_cast<T>(__builtin_sqrt(static_cast<double>(a[i]))) : static_cast<T>(__builtin_sqrtf(static_cast<float>(a[i])));
        return a;
      });
      case ScoreOp::exp: return unary(step, [](V a) { return power(a); });
      case ScoreOp::log: return unary(step, [](V a) {
        const V result = cpu::POLYHEAD_ISA::log<T>(a);
        return a > T{0} ? result : a == T{0} ? broadcast(-static_cast<T>(__builtin_inf())) : broadcast(static_cast<T>(__builtin_nan("")));
      });
      case ScoreOp::tanh: return unary(step, [](V a) { return cpu::POLYHEAD_ISA::tanh<T>(a); });
      case ScoreOp::sigmoid: return unary(step, [](V a) { return T{1} / (T{1} + power(-a)); });
      case ScoreOp::floor: return unary(step, [](V a) {
        const V nearest = to_nearest(a);
        return nearest > a ? nearest - T{1} : nearest;
      });
      case ScoreOp::logical_not: return unary(step, [](V a) { return truth(a == T{0}); });
      case ScoreOp::select: {
        const T *const a = of(step.a), *const b = of(step.b), *const c = of(step.c);
        const std::int64_t of_a = varies(step.a) ? 1 : 0, of_b = varies(step.b) ? 1 : 0, of_c = varies(step.c) ? 1 : 0, end = count_of(step);
        for (std::int64_t i = 0; i < end; i += kWidth)
          store_vector<T>(load_vector(a + i * of_a) != T{0} ? load_vector(b + i * of_b) : load_vector(c + i * of_c), of(step.to) + i);
        return;
      }
      case ScoreOp::sine: return unary_float64(step, [](Vector<double> a) { return sine(a, 0); });
      case ScoreOp::cosine: return unary_float64(step, [](Vector<double> a) { return sine(a, 1); });
      case ScoreOp::arctangent: return unary_float64(step, [](Vector<double> a) { return arctangent(a); });
      case ScoreOp::error_function: return unary_float64(step, [](Vector<double> a) { return error_function(a); });
      case ScoreOp::complementary_error: return unary_float64(step, [](Vector<double> a) { return complementary_error(a); });
      case ScoreOp::round: return unary(step, [](V a) { return to_nearest(a); });
    }
  }

  // Rounds to the nearest integer, or to the even one of two equally near integers.
  static POLYHEAD_INLINE Vector<T> to_nearest(Vector<T> a) {
    constexpr T kWhole = sizeof(T) == 8 ? static_cast<T>(0x1p52) : static_cast<T>(0x1p23);  // every number of this size or above is an integer
    const Vector<T> magnitude = a < T{0} ? -a : a, nearest = (magnitude + kWhole) - kWhole;
    return magnitude < kWhole ? (a < T{0} ? -nearest : nearest) : a;
  }

  // Returns exp(a) for any a: the square of exp(a / 2), because exp_of_negative() covers a smaller range.
  static POLYHEAD_INLINE Vector<T> power(Vector<T> a) {
    constexpr T kMost = sizeof(T) == 8 ? T{720} : T{100};
    const Vector<T> half = (a > kMost ? broadcast(kMost) : a) * T{0.5};
    const Vector<T> root = exp_of_negative<T>(half, ExpFactor<T>(1));
    return root * root;
  }

  static std::int64_t index_of(const ScoreStep& step, int axis, T value) {
    const T extent = static_cast<T>(step.extents[axis]), index = value < T{0} ? value + extent : value;
    return index >= T{0} && index < extent ? static_cast<std::int64_t>(index) : -1;
  }

  // The elements that a load reads for `end` keys, if they are evenly spaced: start, start + stride, ... `found` is false if the range of indices crosses an
  // end of the axis or changes from negative to non-negative, or if an index that is the same for all keys lies outside of its axis.
  struct Neighbours {
    bool found;
    std::int64_t start, stride;
  };
  POLYHEAD_INLINE Neighbours neighbours(const ScoreStep& step, const std::int64_t* strides, std::int64_t end) const {
    const std::int32_t numbers[] = {step.a, step.b, step.c, step.d};
    if (step.unit_axis < 0) return {};
    const T* const values = of(numbers[step.unit_axis]);
    const std::int64_t first = index_of(step, step.unit_axis, values[0]), last = index_of(step, step.unit_axis, values[end - 1]);
    if (first < 0 || last != first + step.unit * (end - 1)) return {};
    std::int64_t start = first * strides[step.unit_axis];
    for (int axis = 0; axis < step.rank; ++axis) {
      if (axis == step.unit_axis) continue;
      const std::int64_t index = index_of(step, axis, of(numbers[axis])[0]);
      if (index < 0) return {};
      start += index * strides[axis];
    }
    return {true, start, step.unit * strides[step.unit_axis]};
  }

  // Calls f(i, inside, element) for each pair i of a load. `element` is the offset of the element that the pair reads, by `strides`. `inside` is false if an
  // index lies outside of the table.
  template <class F>
  POLYHEAD_INLINE void for_each_element(const ScoreStep& step, const std::int64_t* strides, std::int64_t end, const F& f) const {
    if (const Neighbours run = neighbours(step, strides, end); run.found) {
      if (run.stride == 1) {
        for (std::int64_t i = 0; i < end; ++i) f(i, true, run.start + i);
      } else {
        for (std::int64_t i = 0; i < end; ++i) f(i, true, run.start + i * run.stride);
      }
      return;
    }
    const std::int32_t numbers[] = {step.a, step.b, step.c, step.d};
    std::int64_t base = 0;
    bool outside = false;
    int varying[4], varying_count = 0;
    for (int axis = 0; axis < step.rank; ++axis) {
      if (varies(numbers[axis])) {
        varying[varying_count++] = axis;
        continue;
      }
      const std::int64_t index = index_of(step, axis, of(numbers[axis])[0]);
      outside |= index < 0, base += index * strides[axis];
    }
    for (std::int64_t i = 0; i < end; ++i) {
      std::int64_t element = base;
      bool inside = !outside;
      for (int v = 0; v < varying_count; ++v) {
        const std::int64_t index = index_of(step, varying[v], of(numbers[varying[v]])[i]);
        inside &= index >= 0, element += index * strides[varying[v]];
      }
      f(i, inside, element);
    }
  }

  void load(const ScoreStep& step) {
    T* const to = of(step.to);
    const auto read = [&](const auto* table) {
      for_each_element(step, step.strides, count_of(step),
                       [&](std::int64_t i, bool inside, std::int64_t element) { to[i] = inside ? static_cast<T>(table[element]) : static_cast<T>(__builtin_nan("")); });
    };
    step.float64 ? read(static_cast<const double*>(step.table)) : read(static_cast<const float*>(step.table));
    if (varies(step.to)) {
      for (std::int64_t i = count_of(step); i % kWidth != 0; ++i) to[i] = 0;
    } else {
      store_vector<T>(broadcast(to[0]), to);
    }
  }

  // Adds the gradients of the table elements that a load reads. A pair whose gradient is 0, such as a masked pair, adds nothing.
  void add(const ScoreSum& sum, const T* d_scores, double* sums) const {
    double* const to = sums + sum.first;
    const T* const derivative = of(sum.derivative);
    const std::int64_t of_derivative = varies(sum.derivative) ? 1 : 0;
    const auto product = [&](std::int64_t i) { return d_scores[i] == T{0} ? 0 : static_cast<double>(d_scores[i] * derivative[i * of_derivative]); };
    // Returns the products of kTerms keys.
    const auto products = [&](std::int64_t i) {
      Terms<T> d, factors;
      __builtin_memcpy(&d, d_scores + i, sizeof(d));
      of_derivative != 0 ? static_cast<void>(__builtin_memcpy(&factors, derivative + i, sizeof(factors))) : static_cast<void>(factors = derivative[0] - Terms<T>{});
      return __builtin_convertvector(d == T{0} ? Terms<T>{} : d * factors, Terms<double>);
    };
    if (!varies(sum.load->to)) {  // all keys of the row read the same element
      Terms<double> totals{};  // kTerms sums for every instruction set, which are then added as a binary tree
      std::int64_t i = 0;
      for (; i + kTerms <= count_; i += kTerms) totals += products(i);
      for (std::int64_t j = 0; i < count_; ++i, ++j) totals[j] += product(i);
      for (int half = kTerms / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; ++j) totals[j] += totals[j + half];
      }
      for_each_element(*sum.load, sum.strides, 1, [&](std::int64_t, bool inside, std::int64_t element) { to[inside ? element : 0] += inside ? totals[0] : 0; });
      return;
    }
    if (const Neighbours run = neighbours(*sum.load, sum.strides, count_); run.found && run.stride == 1) {
      std::int64_t i = 0;
      for (; i + kTerms <= count_; i += kTerms) {
        Terms<double> earlier;
        __builtin_memcpy(&earlier, to + run.start + i, sizeof(earlier));
        earlier += products(i);
        __builtin_memcpy(to + run.start + i, &earlier, sizeof(earlier));
      }
      for (; i < count_; ++i) to[run.start + i] += product(i);
      return;
    }
    for_each_element(*sum.load, sum.strides, count_, [&](std::int64_t i, bool inside, std::int64_t element) {
      if (inside) to[element] += product(i);
    });
  }

  static constexpr int kTerms = 8;  // number of products that are added at once
  template <class E>
  using Terms = typename TermsOf<E>::type;

  const ScoreSteps& steps_;
  const ScoreTile& tile_;
  char* const scratch_;
  std::int64_t column_ = 0, count_ = 0;  // the first key and the number of keys of the range
  std::int64_t first_row_ = 0, rows_ = 0;
  T* pointers_[kMostScoreInstructions];
  T old_[kMostScoreRangeBytes / sizeof(T)];
};

void forward(const ScoreSteps& steps, const ScoreTile& tile, void* scratch) {
  tile.float64 ? Interpreter<double>(steps, tile, scratch).forward() : Interpreter<float>(steps, tile, scratch).forward();
}

void backward(const ScoreSteps& steps, const ScoreTile& tile, const void* before, double* sums, void* scratch) {
  tile.float64 ? Interpreter<double>(steps, tile, scratch).backward(static_cast<const double*>(before), sums)
               : Interpreter<float>(steps, tile, scratch).backward(static_cast<const float*>(before), sums);
}

}  // namespace

extern const ScoreProgramKernels score_program_kernels;
constinit const ScoreProgramKernels score_program_kernels = {forward, backward};

}  // namespace polyhead::cpu::POLYHEAD_ISA
