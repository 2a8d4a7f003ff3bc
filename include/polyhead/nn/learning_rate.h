// Learning rates as functions of the training step. Steps are counted from 1; the next step is AdamW::steps() + 1.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct WarmupCosine {
  double peak = 1e-3;             // the learning rate of step warmup_steps
  double last = 0;                // the learning rate of step total_steps and of all later steps
  std::int64_t warmup_steps = 0;  // number of steps in which the learning rate grows; at least 0
  std::int64_t total_steps = 0;   // number of all steps; more than warmup_steps
};

// Returns the learning rate of step k: a linear warm-up, then half a period of a cosine (Loshchilov and Hutter 2017, eq. 5, without restarts). It is peak k /
// warmup for k <= warmup, else last + (peak - last) (1 + cos(pi (min(k, total) - warmup) / (total - warmup))) / 2. Error for k < 1.
double warmup_cosine(std::int64_t step, const WarmupCosine& schedule);

struct Noam {
  std::int64_t width = 0;  // width of the model
  std::int64_t warmup_steps = 4000;
  double factor = 1;
};

// Returns the learning rate factor width^(-1/2) min(k^(-1/2), k warmup^(-3/2)) of step k (Vaswani et al. 2017, eq. 3). Error for k < 1.
double noam(std::int64_t step, const Noam& schedule);

}  // namespace polyhead::nn
#pragma GCC visibility pop
