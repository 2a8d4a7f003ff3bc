// The tables of kernel functions for activations, normalisation, softmax, AdamW and dropout on contiguous rows. They are compiled for every instruction set.
#pragma once

#include <cstdint>
#include <type_traits>

namespace polyhead::cpu {

struct ActivationKernel {
  void (*value)(std::int64_t count, const float* x, float* y);                                   // y = f(x); y may be x
  void (*backward)(std::int64_t count, const float* x, const float* d_y, bool add, float* d_x);  // d_x = f'(x) d_y, or d_x += f'(x) d_y if `add`; d_x may be d_y
};

struct ActivationKernels {
  static const ActivationKernels* const of_sets[];  // one entry per instruction set, in the order of kernel_sets()
  ActivationKernel sigmoid, tanh, gelu, gelu_tanh, silu, quick_gelu;
};

// One row of a normalisation: sums = x + added, y = (sums - mean) / sqrt(variance + epsilon) * weight + bias, each `width` contiguous float32. If the
// normalisation is not centred (RMS normalisation), the mean is taken as 0, and the variance is the mean square.
struct NormRow {
  std::int64_t width;
  bool centred = true;
  float epsilon;
  const float *weight, *bias, *x;
  const float* added = nullptr;  // if nullptr, y is computed from x alone, and `sums` is not used
  float* sums = nullptr;         // output x + added; may be the memory of x
  float* y = nullptr;            // output; may be the memory of x, added or sums
};

// The gradient of up to kRows rows of a normalisation, each `width` contiguous float32. With n the normalised row and g = d_y weight:
// d_x = (g - mean(g) - n mean(g n)) / sqrt(variance + epsilon), or d_x += this if `add`; d_weight += d_y n and d_bias += d_y, summed over the rows. If the
// normalisation is not centred, mean(g) is left out.
struct NormBackwardRows {
  static constexpr int kRows = 8;
  std::int64_t width;
  bool centred = true;
  int rows;  // 1 to kRows
  float epsilon;
  const float* weight;
  const float *x[kRows], *d_y[kRows];
  bool add = false;                                // true: the gradient is added to d_x
  float* d_x[kRows] = {};                          // if d_x[0] is nullptr, no d_x is written
  double *d_weight = nullptr, *d_bias = nullptr;   // if d_weight is nullptr, neither d_weight nor d_bias is computed
};

struct NormKernels {
  static const NormKernels* const of_sets[];  // one entry per instruction set, in the order of kernel_sets()
  void (*normalise_row)(const NormRow& row);
  void (*backward_rows)(const NormBackwardRows& rows);
};

// Results for a row x of logits: the largest element, and the sums of exp(x - largest) and of x - largest over all elements.
template <class T>
struct SoftmaxRow {
  T largest{};
  double exps = 0, differences = 0;
};

template <class T>
struct SoftmaxKernel {
  SoftmaxRow<T> (*exps)(std::int64_t count, const T* x, T* y);      // if y is given, also writes y = exp(x - largest); y may be x; count > 0
  void (*scale)(std::int64_t count, T factor, T added, T* y);       // y = factor y + added
};

struct SoftmaxKernels {
  static const SoftmaxKernels* const of_sets[];  // one entry per instruction set, in the order of kernel_sets()
  SoftmaxKernel<float> of_floats;
  SoftmaxKernel<double> of_doubles;
};

// The numbers of a step of AdamW: first m += new_m (g - m) and v = old_v v + new_v g^2, then p = keep p - rate m / (root_scale sqrt(v) + epsilon).
struct AdamStep {
  double keep, rate, new_m, old_v, new_v, root_scale, epsilon;
};

struct AdamKernels {
  static const AdamKernels* const of_sets[];  // one entry per instruction set, in the order of kernel_sets()
  void (*of_floats)(std::int64_t count, const AdamStep& step, const float* g, float* m, float* v, float* p);
  void (*of_doubles)(std::int64_t count, const AdamStep& step, const double* g, double* m, double* v, double* p);
};

// Returns the kernel for numbers of type A, float or double, of a table that has one for each.
template <class A, class Kernels>
const auto& kernel_of(const Kernels& kernels) {
  if constexpr (std::is_same_v<A, double>) {
    return kernels.of_doubles;
  } else {
    return kernels.of_floats;
  }
}

struct DropoutKernels {
  static const DropoutKernels* const of_sets[];  // one entry per instruction set, in the order of kernel_sets()
  // Sets keep[i] != 0 where dropout keeps element i of the row, that is where the element's random 32-bit word is at least `below`. `keep` must have room for
  // count + margin bytes.
  void (*keep_row)(std::int64_t count, std::uint32_t row, std::uint64_t seed, std::int64_t below, std::uint8_t* keep);
  std::int64_t margin;
};

}  // namespace polyhead::cpu
