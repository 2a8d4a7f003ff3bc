#include "polyhead/nn/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/text.h"

namespace polyhead::nn {

double warmup_cosine(std::int64_t step, const WarmupCosine& schedule) {
  const auto& [peak, last, warmup, total] = schedule;
  require(step >= 1, "warmup_cosine: step is ", step, "; the first step is 1");
  require(0 <= warmup && warmup < total, "warmup_cosine: warmup_steps is ", warmup, " and total_steps ", total,
          "; they must satisfy 0 <= warmup_steps < total_steps");
  if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  const double progress = static_cast<double>(std::min(step, total) - warmup) / static_cast<double>(total - warmup);
  return last + (peak - last) * (1 + std::cos(std::numbers::pi * progress)) / 2;
}

double noam(std::int64_t step, const Noam& schedule) {
  require(step >= 1, "noam: step is ", step, "; the first step is 1");
  require(schedule.width >= 1 && schedule.warmup_steps >= 1, "noam: width is ", schedule.width, " and warmup_steps ",
          schedule.warmup_steps, "; both must be at least 1");
  const auto k = static_cast<double>(step), warmup = static_cast<double>(schedule.warmup_steps);
  return schedule.factor / std::sqrt(static_cast<double>(schedule.width)) * std::min(1 / std::sqrt(k), k / (warmup * std::sqrt(warmup)));
}

}  // namespace polyhead::nn
