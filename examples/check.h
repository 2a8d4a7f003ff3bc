// Shared by the examples: makes inputs, prints tensors and checks claims.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/nn/multi_head_attention.h"

namespace example {

// Reproducible test data: sines of the position in memory.
inline polyhead::Tensor waves(const polyhead::Shape& shape, double phase = 0) {
  polyhead::Tensor x(polyhead::DType::f32, shape);
  for (std::int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = static_cast<float>(std::sin(phase + 0.7 * static_cast<double>(i)));
  return x;
}

inline void show(std::string_view name, const polyhead::Tensor& x) {
  std::printf("%-28.*s %s\n", static_cast<int>(name.size()), name.data(), polyhead::to_string(x.shape()).c_str());
}

inline void show_row(std::string_view name, const float* values, std::int64_t count) {
  std::printf("%-28.*s", static_cast<int>(name.size()), name.data());
  for (std::int64_t i = 0; i < count; ++i) std::printf(" %6.3f", static_cast<double>(values[i]));
  std::printf("\n");
}

inline bool near(double a, double b) { return std::abs(a - b) <= 1e-5; }

inline bool rows_sum_to_one(const polyhead::Tensor& weights) {
  const std::int64_t keys = weights.extent(-1);
  for (std::int64_t row = 0; row < weights.numel() / keys; ++row) {
    double sum = 0;
    for (std::int64_t s = 0; s < keys; ++s) sum += static_cast<double>(weights.data<float>()[row * keys + s]);
    if (!near(sum, 1)) return false;
  }
  return true;
}

// Prints each claim. status() is the exit status for main(): 0 if all claims hold.
class Claims {
 public:
  void add(std::string_view claim, bool holds) {
    std::printf("%s %.*s\n", holds ? "yes:" : "NO: ", static_cast<int>(claim.size()), claim.data());
    failed_ += !holds;
  }
  int status() const { return failed_ == 0 ? 0 : 1; }

 private:
  int failed_ = 0;
};

}  // namespace example
