#include "training/run.h"

#include <charconv>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "core/text.h"
#include "io/file_bytes.h"
#include "polyhead/io/parameters.h"
#include "polyhead/nn/learning_rate.h"

namespace polyhead::training {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Exponential moving averages of all parameters. They replace the parameters while the task is validated and saved.
class Averages {
 public:
  Averages(const nn::NamedParameters& parameters, double decay) : decay_(decay) {
    if (decay > 0)
      for (const auto& [name, tensor] : parameters) averages_.emplace_back("average." + name, Tensor::copy_of(*tensor));
  }
  void add(const nn::NamedParameters& parameters, std::int64_t step) {
    // The decay is smaller in the first steps, so that the initial parameters soon leave the average.
    const auto decay = static_cast<float>(std::min(decay_, static_cast<double>(step) / static_cast<double>(step + 9)));
    for (std::size_t i = 0; i < averages_.size(); ++i) {
      float* const mean = averages_[i].second.data<float>();
      const float* const now = std::as_const(*parameters[i].second).data<float>();
      for (std::int64_t k = 0; k < parameters[i].second->view().numel(); ++k) mean[k] = decay * mean[k] + (1 - decay) * now[k];
    }
  }
  void swap(const nn::NamedParameters& parameters) {
    for (std::size_t i = 0; i < averages_.size(); ++i) {
      const Tensor now = Tensor::copy_of(*parameters[i].second);
      copy(averages_[i].second, *parameters[i].second);
      copy(now, averages_[i].second);
    }
  }
  void list(nn::NamedParameters& list) {
    for (auto& [name, tensor] : averages_) list.emplace_back(name, &tensor);
  }

 private:
  double decay_;
  std::vector<std::pair<std::string, Tensor>> averages_;
};

// The tensors of a checkpoint, apart from those of the optimizer.
struct State {
  nn::NamedParameters list;
  template <class F>
  void visit(const F& f) const {
    for (const auto& [name, tensor] : list) f(name, *tensor);
  }
};

struct Best {
  std::optional<Validation> validation{};
  std::int64_t worse_since = 0;  // number of validations since the best one
};

std::string value_of(const io::Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string() : found->second;
}

template <class T>
T number_of(const io::Metadata& metadata, const std::string& key) {
  const std::string word = value_of(metadata, key);
  T number{};
  if (std::from_chars(word.data(), word.data() + word.size(), number).ec != std::errc{})
    fail(ErrorCode::format, kCheckpoint, ": its metadata has '", word, "' as ", key, "; it must be a number");
  return number;
}

io::Metadata metadata_of(const std::string& identity, const Best& best) {
  io::Metadata metadata{{"identity", identity}, {"worse_since", cat(best.worse_since)}};
  if (best.validation) metadata["best_score"] = cat(best.validation->score), metadata["best_text"] = best.validation->text;
  return metadata;
}

Best best_of(const io::Metadata& metadata) {
  Best best{.worse_since = number_of<std::int64_t>(metadata, "worse_since")};
  if (metadata.contains("best_score")) best.validation = Validation{number_of<double>(metadata, "best_score"), value_of(metadata, "best_text")};
  return best;
}

double rate_of(const Plan& plan, std::int64_t step) {
  const std::int64_t warmup = std::min(plan.warmup_steps, plan.steps / 5);  // a run with few steps warms up for only a fifth of them
  return nn::warmup_cosine(step, {.peak = plan.peak_rate, .last = plan.peak_rate / 100, .warmup_steps = warmup, .total_steps = plan.steps});
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(ErrorCode::io, "cannot make the folder ", folder.string(), ": ", error.message());
}

}  // namespace

RunResult run(Task& task, const Plan& plan, const RunOptions& options) {
  require(plan.steps >= 1, "a run needs at least 1 step; it was given ", plan.steps);
  const nn::NamedParameters parameters = task.parameters(), gradients = task.gradients();
  nn::AdamW optimizer(parameters, plan.optimizer);
  Averages averages(parameters, plan.average);
  Best best;

  const std::filesystem::path checkpoint = options.folder / kCheckpoint;
  State state{parameters};
  averages.list(state.list);
  const bool found = std::filesystem::exists(checkpoint);
  if (options.resume) {
    if (!found) fail(ErrorCode::io, "there is no run to resume: ", checkpoint.string(), " does not exist");
    io::require_regular(checkpoint);
    const std::string identity = value_of(io::open_tensors(checkpoint).metadata, "identity");
    require(identity == options.identity, checkpoint.string(), " is of another run (", identity, "); this one is ", options.identity);
    best = best_of(io::load_parameters(state, optimizer, checkpoint));
  } else {
    require(!found, checkpoint.string(), " belongs to a run that was stopped; resume that run, or remove the file");
    make_folder(options.folder);
  }

  options.on_start();
  const std::int64_t first = optimizer.steps() + 1;
  const Clock::time_point start = Clock::now();
  double loss = 0, tokens = 0;
  std::int64_t losses = 0;
  for (std::int64_t number = first; number <= plan.steps; ++number) {
    const StepResult result = task.step(number);
    nn::clip_gradients(gradients, plan.max_norm);
    optimizer.step(parameters, gradients, {.learning_rate = rate_of(plan, number)});
    averages.add(parameters, number);
    loss += result.loss, losses += 1, tokens += static_cast<double>(result.tokens);
    const double seconds = seconds_since(start);
    const Progress progress{number, plan.steps, loss / static_cast<double>(losses), tokens / seconds, seconds / static_cast<double>(number - first + 1) * static_cast<double>(plan.steps - number)};
    options.on_step(progress);

    const bool stopped = options.stop != nullptr && options.stop->load();
    const bool validates = number == plan.steps || (plan.validate_every > 0 && number % plan.validate_every == 0);
    if (validates) {
      averages.swap(parameters);
      const Validation validation = task.validate();
      const bool better = !best.validation || std::isnan(best.validation->score) || validation.score > best.validation->score;  // a correlation may be NaN
      if (better && options.keep_model) task.save(options.folder);
      averages.swap(parameters);
      best.worse_since = better ? 0 : best.worse_since + 1;
      if (better) best.validation = validation;
      options.on_validation(progress, validation, better);
      loss = 0, losses = 0;
      const bool no_improvement = plan.patience > 0 && best.worse_since >= plan.patience;
      if (number == plan.steps || no_improvement) {
        std::filesystem::remove(checkpoint);
        return {number == plan.steps ? RunEnd::complete : RunEnd::no_improvement, number, best.validation};
      }
    }
    if (!validates && !stopped) continue;
    io::save_parameters(state, optimizer, checkpoint, metadata_of(options.identity, best));
    if (stopped) return {RunEnd::stopped, number, best.validation};
  }
  fail(ErrorCode::format, checkpoint.string(), " is of step ", optimizer.steps(), "; the run has ", plan.steps);
}

}  // namespace polyhead::training
