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
  std::filesystem::path data;  // the value of --data; empty if the option was not given
  std::uint64_t seed = 0;
  // Number of heads of each layer, for a study with a fixed number of parameters and without losses on attention weights. Absent: the task's default.
  std::optional<std::int64_t> heads{};
  std::function<void(const std::string&)> note = [](const std::string&) {};  // called with remarks, for example about skipped lines of data
};

// How a task is trained if the user does not choose: number of steps, learning rate and validations.
struct Plan {
  std::int64_t steps = 0;
  std::int64_t validate_every = 0;  // steps between validations
  std::int64_t patience = 0;        // the run ends after this many validations in a row without a better score; 0: it never ends early
  double peak_rate = 1e-3;          // learning rate at the end of the warm-up; from there it falls as a cosine to a hundredth of this value
  std::int64_t warmup_steps = 100;
  double max_norm = 1;  // gradients are clipped to this norm
  // Above 0: moving averages of the parameters, p' <- average p' + (1 - average) p, are validated and saved instead of the parameters.
  double average = 0;
  nn::AdamWConfig optimizer{};
};

struct StepResult {
  double loss = 0;          // mean loss over the examples or tokens of the batch
  std::int64_t tokens = 0;  // number of tokens or patches in the batch, from which the displayed speed is computed
};

struct Validation {
  double score = 0;  // higher is better
  std::string text;  // the score in words, such as "accuracy 0.975 of 360 images"
};

class Task {
 public:
  Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  virtual ~Task() = default;

  virtual std::vector<std::string> description() const = 0;  // lines that describe data and model; they are printed before the first step
  virtual Plan plan() const = 0;
  virtual nn::NamedParameters parameters() = 0;
  virtual nn::NamedParameters gradients() = 0;  // has the names of parameters()
  // Computes the gradients of step `number`, counted from 1. The gradients depend only on the data, the seed, the parameters and the number, so that a resumed
  // run has the same bits.
  virtual StepResult step(std::int64_t number) = 0;
  virtual Validation validate() = 0;
  virtual void save(const std::filesystem::path& folder) const = 0;
};

}  // namespace polyhead::training
