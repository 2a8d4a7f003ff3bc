// The interface between a task and the training loop (run.h): parameters, a step, a score on data that no step reads, and saving to a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "polyhead/nn/optimizer.h"

namespace polyhead::training {

struct TaskOptions {
  std::filesystem::path data;  // empty: none given
  std::uint64_t seed = 0;
  std::optional<std::int64_t> heads{};  // heads of each layer, with the same number of parameters and without losses on attention weights; absent: the task's default
  std::function<void(const std::string&)> note = [](const std::string&) {};  // receives remarks, for example about skipped lines of data
};

// The default length and learning rate of a task.
struct Plan {
  std::int64_t steps = 0;
  std::int64_t validate_every = 0;  // steps between validations
  std::int64_t patience = 0;        // validations in a row without a better score after which the run ends; 0: it never ends early
  double peak_rate = 1e-3;          // learning rate after warm-up; from this value it falls as a cosine to a hundredth of it
  std::int64_t warmup_steps = 100;
  double max_norm = 1;  // gradients are clipped to this norm
  double average = 0;   // above 0: validate and save moving averages of the parameters, p' <- average p' + (1 - average) p
  nn::AdamWConfig optimizer{};
};

struct StepResult {
  double loss = 0;          // mean over the examples or tokens of the batch
  std::int64_t tokens = 0;  // tokens or patches of the batch, for the displayed speed
};

struct Validation {
  double score = 0;  // higher is better
  std::string text;  // "accuracy 0.975 of 360 images"
};

class Task {
 public:
  Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  virtual ~Task() = default;

  virtual std::vector<std::string> description() const = 0;  // lines about data and model, printed before the first step
  virtual Plan plan() const = 0;
  virtual nn::NamedParameters parameters() = 0;
  virtual nn::NamedParameters gradients() = 0;  // the names are those of parameters()
  // Computes the gradients of step `number`, counted from 1. The gradients depend only on the data, the seed, the parameters and the number, so that a resumed
  // run has the same bits.
  virtual StepResult step(std::int64_t number) = 0;
  virtual Validation validate() = 0;
  virtual void save(const std::filesystem::path& folder) const = 0;
};

}  // namespace polyhead::training
