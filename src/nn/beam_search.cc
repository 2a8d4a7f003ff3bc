#include "polyhead/nn/beam_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "core/quiet_arithmetic.h"
#include "cpu/select.h"
#include "nn/logit_rows.h"

namespace polyhead::nn {
namespace {

constexpr const char* kBeamSearch = "beam_search";

struct Candidate {
  std::int64_t beam = 0, token = 0;
  double log_probability = 0;
};

// The hypotheses of one sequence. A hypothesis is open until its end token, or until it has max_tokens tokens.
class Search {
 public:
  Search(const BeamSearchOptions& options) : options_(options), open_(1) {}

  bool done() const { return open_.empty(); }
  std::int64_t open() const { return std::ssize(open_); }
  const Hypothesis& open(std::int64_t beam) const { return open_[static_cast<std::size_t>(beam)]; }

  // Keeps the best 2 * beams candidates. At most one continuation of each beam has the end token, so at least `beams` of the kept candidates stay open.
  void offer(const Candidate& candidate) {
    if (std::ssize(candidates_) == 2 * options_.beams) {
      if (!better(candidate, candidates_.front())) return;
      std::ranges::pop_heap(candidates_, better);  // the front of the heap is the worst candidate
      candidates_.pop_back();
    }
    candidates_.push_back(candidate);
    std::ranges::push_heap(candidates_, better);
  }

  // Replaces the open hypotheses by their best continuations. Sets parents[i] to the beam that the new hypothesis i continues.
  void extend(std::vector<std::int64_t>& parents) {
    std::ranges::sort(candidates_, better);
    std::vector<Hypothesis> next;
    parents.clear();
    for (const Candidate& candidate : candidates_) {
      Hypothesis hypothesis = open(candidate.beam);
      hypothesis.tokens.push_back(candidate.token);
      hypothesis.log_probability = candidate.log_probability;
      hypothesis.score = score(hypothesis.log_probability, std::ssize(hypothesis.tokens));
      hypothesis.ended = candidate.token == options_.end_token;
      if (hypothesis.ended || std::ssize(hypothesis.tokens) == options_.max_tokens) {
        found_.push_back(std::move(hypothesis));
      } else if (std::ssize(next) < options_.beams) {
        next.push_back(std::move(hypothesis));
        parents.push_back(candidate.beam);
      }
    }
    candidates_.clear();
    std::ranges::stable_sort(found_, std::ranges::greater{}, &Hypothesis::score);
    if (std::ssize(found_) > options_.beams) found_.resize(static_cast<std::size_t>(options_.beams));
    open_ = std::move(next);
    if (std::ssize(found_) == options_.beams && best_of_open() <= found_.back().score) open_.clear();
  }

  std::vector<Hypothesis> take() { return std::move(found_); }

 private:
  double score(double log_probability, std::int64_t tokens) const { return log_probability / std::pow(static_cast<double>(tokens), options_.length_penalty); }

  // Returns an upper bound on the scores of all continuations of open hypotheses. A continuation's log-probability is at most that of its hypothesis, and the
  // score is monotonic in the length, so the shortest or the longest continuation would have the largest score.
  double best_of_open() const {
    double best = -HUGE_VAL;
    for (const Hypothesis& hypothesis : open_) {
      best = std::max({best, score(hypothesis.log_probability, std::ssize(hypothesis.tokens) + 1), score(hypothesis.log_probability, options_.max_tokens)});
    }
    return best;
  }

  static bool better(const Candidate& a, const Candidate& b) {
    return std::tuple(-a.log_probability, a.beam, a.token) < std::tuple(-b.log_probability, b.beam, b.token);
  }

  BeamSearchOptions options_;
  std::vector<Hypothesis> open_, found_;
  std::vector<Candidate> candidates_;  // a heap whose front is the worst candidate
};

}  // namespace

std::vector<std::vector<Hypothesis>> beam_search(std::span<const std::int64_t> start_tokens, const DecodeStep& step, const BeamSearchOptions& options) {
  require(options.beams >= 1, kBeamSearch, ": beams is ", options.beams, "; it must be at least 1");
  require(options.max_tokens >= 1, kBeamSearch, ": max_tokens is ", options.max_tokens, "; it must be at least 1");
  require(std::isfinite(options.length_penalty), kBeamSearch, ": length_penalty is ", options.length_penalty, "; it must be finite");
  const std::int64_t beams = options.beams, rows = std::ssize(start_tokens) * beams;
  std::vector<Search> searches(start_tokens.size(), Search(options));
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(rows)), parents(tokens.size());
  for (std::int64_t row = 0; row < rows; ++row) tokens[static_cast<std::size_t>(row)] = start_tokens[static_cast<std::size_t>(row / beams)];
  std::iota(parents.begin(), parents.end(), 0);
  std::int64_t classes = 0;
  while (!std::ranges::all_of(searches, &Search::done)) {
    const ConstTensorView logits = step(tokens, parents);
    require_logits(kBeamSearch, logits);
    if (classes == 0) classes = logits.extent(1);
    require(logits.shape() == Shape({rows, classes}), kBeamSearch, ": the step gave logits ", logits.shape(), "; they must be ", Shape({rows, classes}));
    require(!options.end_token || (0 <= *options.end_token && *options.end_token < classes), kBeamSearch, ": end_token is ", options.end_token.value_or(0),
            "; it must be in [0,", classes, ")");
    const auto search_of = [&](std::int64_t row) -> Search& { return searches[static_cast<std::size_t>(row / beams)]; };
    for_each_row_of_logits(kBeamSearch, logits, [&](std::int64_t row) { return row % beams < search_of(row).open(); },
                           [&](std::int64_t row, const std::vector<double>& values) {
      const QuietArithmetic quiet;  // logits may be -infinity, and the caller may have enabled floating-point traps
      const cpu::SoftmaxRow<double> sums = cpu::current_kernels_of<cpu::SoftmaxKernels>().of_doubles.exps(std::ssize(values), values.data(), nullptr);
      const double before = search_of(row).open(row % beams).log_probability - sums.largest - std::log(sums.exps);
      for (std::size_t token = 0; token < values.size(); ++token) {
        if (values[token] > -HUGE_VAL) search_of(row).offer({row % beams, static_cast<std::int64_t>(token), before + values[token]});
      }
    });
    for (std::size_t sequence = 0; sequence < searches.size(); ++sequence) {
      Search& search = searches[sequence];
      if (search.done()) continue;
      std::vector<std::int64_t> beam_of;
      search.extend(beam_of);
      const std::int64_t first = static_cast<std::int64_t>(sequence) * beams;
      for (std::int64_t beam = 0; beam < search.open(); ++beam) {
        tokens[static_cast<std::size_t>(first + beam)] = search.open(beam).tokens.back();
        parents[static_cast<std::size_t>(first + beam)] = first + beam_of[static_cast<std::size_t>(beam)];
      }
      for (std::int64_t beam = search.open(); beam < beams; ++beam) parents[static_cast<std::size_t>(first + beam)] = first + beam;
    }
  }
  std::vector<std::vector<Hypothesis>> best;
  for (Search& search : searches) best.push_back(search.take());
  return best;
}

}  // namespace polyhead::nn
