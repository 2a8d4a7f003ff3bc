// The interpreter of score programs. Each step runs over a range of keys of one row, so that selecting a step's operation takes a fraction of the time of
// computing it. The registers of a range stay in the first-level cache.
#include "cpu/elementary.h"
#include "cpu/score_program/kernels.h"
#include "cpu/special.h"
#include "polyhead/score_op.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
constexpr std::int64_t kRange = 512 / static_cast<std::int64_t>(sizeof(T));  // number of keys in a range; a register then needs 512 bytes

template <class T>
class Interpreter {
 public:
  Interpreter(const ScoreSteps& steps, const ScoreTile& tile, void* scratch) : steps_(steps), tile_(tile), registers_(static_cast<T*>(scratch)) {}

  void forward() {
    for_each_range([&](std::int64_t row, T* scores) {
      load_row(scores);
      run(steps_.per_row, steps_.per_row_count, row);
      for (std::int64_t i = 0; i < count_; ++i) scores[i] = at(steps_.result, i);
    });
  }

  void backward(const T* before, double* sums) {
    for_each_range([&](std::int64_t row, T* d_scores) {
      load_row(before + (d_scores - static_cast<T*>(tile_.scores)));
      run(steps_.per_row, steps_.per_row_count, row);
      for (int i = 0; i < steps_.sum_count && sums != nullptr; ++i) add(steps_.sums[i], d_scores, sums);
      for (std::int64_t i = 0; i < count_; ++i) d_scores[i] *= at(steps_.result, i);
    });
  }

 private:
  static constexpr int kWidth = kLanes<T>;

  T* of(std::int32_t number) const { return registers_ + number * kRange<T>; }
  T at(std::int32_t number, std::int64_t i) const { return of(number)[steps_.varies[number] ? i : 0]; }

  template <class F>
  POLYHEAD_INLINE void for_each_range(const F& f) {
    for (column_ = 0; column_ < tile_.keys; column_ += kRange<T>) {
      count_ = tile_.keys - column_ < kRange<T> ? tile_.keys - column_ : kRange<T>;
      score_ = nullptr;
      run(steps_.once, steps_.once_count, 0);
      for (std::int64_t row = 0; row < tile_.rows; ++row) f(row, static_cast<T*>(tile_.scores) + row * tile_.row_stride + column_);
    }
  }

  // Copies the scores of the range to old_, and fills the last vector of old_ up with zeros.
  void load_row(const T* scores) {
    for (std::int64_t i = 0; i < count_; ++i) old_[i] = scores[i];
    for (std::int64_t i = count_; i % kWidth != 0; ++i) old_[i] = 0;
    score_ = old_;
  }

  template <class F>
  POLYHEAD_INLINE void unary(const ScoreStep& step, const F& f) {
    const T* const a = of(step.a);
    T* const to = of(step.to);
    const std::int64_t end = step.varies ? count_ : 1;
    for (std::int64_t i = 0; i < end; i += kWidth) store_vector<T>(f(load_vector(a + i)), to + i);
  }
  template <class F>
  POLYHEAD_INLINE void binary(const ScoreStep& step, const F& f) {
    const T *const a = of(step.a), *const b = of(step.b);
    const std::int64_t of_a = steps_.varies[step.a] ? 1 : 0, of_b = steps_.varies[step.b] ? 1 : 0, end = step.varies ? count_ : 1;
    T* const to = of(step.to);
    for (std::int64_t i = 0; i < end; i += kWidth) store_vector<T>(f(load_vector(a + i * of_a), load_vector(b + i * of_b)), to + i);
  }
  // Applies f, which is computed in float64, to register a.
  template <class F>
  POLYHEAD_INLINE void unary_float64(const ScoreStep& step, const F& f) {
    typedef T Some __attribute__((vector_size(sizeof(T) * kLanes<double>), aligned(alignof(T)), may_alias));  // a vector of T with as many lanes as a vector of float64
    const T* const a = of(step.a);
    T* const to = of(step.to);
    const std::int64_t end = step.varies ? count_ : 1;
    for (std::int64_t i = 0; i < end; i += kWidth) {
#pragma GCC unroll 2
      for (int j = 0; j < kWidth; j += kLanes<double>)
        *reinterpret_cast<Some*>(to + i + j) = __builtin_convertvector(f(__builtin_convertvector(*reinterpret_cast<const Some*>(a + i + j), Vector<double>)), Some);
    }
  }
  static POLYHEAD_INLINE Vector<T> truth(Vector<Bits<T>> mask) { return mask ? broadcast(T{1}) : Vector<T>{}; }

  void fill(const ScoreStep& step, T value) { store_vector<T>(broadcast(value), of(step.to)); }

  void run(const ScoreStep* steps, int count, std::int64_t row) {
    for (const ScoreStep* step = steps; step != steps + count; ++step) compute(*step, row);
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
      case ScoreOp::score:
        for (std::int64_t i = 0; i < count_; i += kWidth) store_vector<T>(load_vector(score_ + i), of(step.to) + i);
        return;
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
        const std::int64_t of_a = steps_.varies[step.a] ? 1 : 0, of_b = steps_.varies[step.b] ? 1 : 0, of_c = steps_.varies[step.c] ? 1 : 0, end = step.varies ? count_ : 1;
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

  // exp of any number: the square of exp(a / 2), because exp_of_negative() covers a smaller range.
  static POLYHEAD_INLINE Vector<T> power(Vector<T> a) {
    constexpr T kMost = sizeof(T) == 8 ? T{720} : T{100};
    const Vector<T> half = (a > kMost ? broadcast(kMost) : a) * T{0.5};
    const Vector<T> root = exp_of_negative<T>(half, ExpFactor<T>(1));
    return root * root;
  }

  // Calls f(i, inside, element) for each pair i of a load, where `element` is the element's offset by `strides`; inside is false if an index lies outside of
  // the table.
  template <class F>
  POLYHEAD_INLINE void for_each_element(const ScoreStep& step, const std::int64_t* strides, std::int64_t end, const F& f) const {
    const std::int32_t numbers[] = {step.a, step.b, step.c, step.d};
    std::int64_t base = 0;
    bool outside = false;
    int varying[4], varying_count = 0;
    const auto index_of = [&](int axis, T value) -> std::int64_t {
      const T extent = static_cast<T>(step.extents[axis]), index = value < T{0} ? value + extent : value;
      return index >= T{0} && index < extent ? static_cast<std::int64_t>(index) : -1;
    };
    for (int axis = 0; axis < step.rank; ++axis) {
      if (steps_.varies[numbers[axis]]) {
        varying[varying_count++] = axis;
        continue;
      }
      const std::int64_t index = index_of(axis, of(numbers[axis])[0]);
      outside |= index < 0, base += index * strides[axis];
    }
    if (step.unit_axis >= 0 && !outside) {  // the elements are neighbours, unless the range of indices crosses an end of the axis, or changes from negative to non-negative
      const T* const index = of(numbers[step.unit_axis]);
      const std::int64_t first = index_of(step.unit_axis, index[0]), last = index_of(step.unit_axis, index[end - 1]);
      if (first >= 0 && last == first + step.unit * (end - 1)) {
        const std::int64_t stride = step.unit * strides[step.unit_axis], start = base + first * strides[step.unit_axis];
        if (stride == 1) {
          for (std::int64_t i = 0; i < end; ++i) f(i, true, start + i);
        } else {
          for (std::int64_t i = 0; i < end; ++i) f(i, true, start + i * stride);
        }
        return;
      }
    }
    for (std::int64_t i = 0; i < end; ++i) {
      std::int64_t element = base;
      bool inside = !outside;
      for (int v = 0; v < varying_count; ++v) {
        const std::int64_t index = index_of(varying[v], of(numbers[varying[v]])[i]);
        inside &= index >= 0, element += index * strides[varying[v]];
      }
      f(i, inside, element);
    }
  }

  void load(const ScoreStep& step) {
    T* const to = of(step.to);
    const auto read = [&](const auto* table) {
      for_each_element(step, step.strides, step.varies ? count_ : 1,
                       [&](std::int64_t i, bool inside, std::int64_t element) { to[i] = inside ? static_cast<T>(table[element]) : static_cast<T>(__builtin_nan("")); });
    };
    step.float64 ? read(static_cast<const double*>(step.table)) : read(static_cast<const float*>(step.table));
    if (step.varies) {
      for (std::int64_t i = count_; i % kWidth != 0; ++i) to[i] = 0;
    } else {
      store_vector<T>(broadcast(to[0]), to);
    }
  }

  // Adds the gradient of the elements that a load reads. A pair whose gradient is 0, such as a masked pair, adds nothing.
  void add(const ScoreSum& sum, const T* d_scores, double* sums) const {
    double* const to = sums + sum.first;
    if (!sum.load->varies) {  // all keys of the row read the same element
      double total = 0;
      for (std::int64_t i = 0; i < count_; ++i) total += d_scores[i] == T{0} ? 0 : static_cast<double>(d_scores[i] * at(sum.derivative, i));
      for_each_element(*sum.load, sum.strides, 1, [&](std::int64_t, bool inside, std::int64_t element) { to[inside ? element : 0] += inside ? total : 0; });
      return;
    }
    for_each_element(*sum.load, sum.strides, count_, [&](std::int64_t i, bool inside, std::int64_t element) {
      if (inside && d_scores[i] != T{0}) to[element] += static_cast<double>(d_scores[i] * at(sum.derivative, i));
    });
  }

  const ScoreSteps& steps_;
  const ScoreTile& tile_;
  T* const registers_;
  const T* score_ = nullptr;
  std::int64_t column_ = 0, count_ = 0;
  T old_[kRange<T>];
};

std::int64_t scratch_bytes(const ScoreSteps& steps) { return (steps.registers + 1) * 512; }

void forward(const ScoreSteps& steps, const ScoreTile& tile, void* scratch) {
  tile.float64 ? Interpreter<double>(steps, tile, scratch).forward() : Interpreter<float>(steps, tile, scratch).forward();
}

void backward(const ScoreSteps& steps, const ScoreTile& tile, const void* before, double* sums, void* scratch) {
  tile.float64 ? Interpreter<double>(steps, tile, scratch).backward(static_cast<const double*>(before), sums)
               : Interpreter<float>(steps, tile, scratch).backward(static_cast<const float*>(before), sums);
}

}  // namespace

extern const ScoreProgramKernels score_program_kernels;
constinit const ScoreProgramKernels score_program_kernels = {scratch_bytes, forward, backward};

}  // namespace polyhead::cpu::POLYHEAD_ISA
