#include "polyhead/nn/beam_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "nn/logit_rows.h"

namespace polyhead::nn {
namespace {

constexpr const char* kOperation = "beam_search";

struct Candidate {
  std::int64_t beam = 0, token = 0;
  double log_probability = 0;
};

// The open and the ended answers of one sequence.
class Search {
 public:
  Search(const BeamSearchOptions& options) : options_(options), open_(1) {}

  bool done() const { return open_.empty(); }
  std::int64_t open() const { return std::ssize(open_); }
  const Answer& open(std::int64_t beam) const { return open_[static_cast<std::size_t>(beam)]; }

  // Takes the best continuations. parents[i] becomes the beam that open answer i continues.
  void extend(std::vector<Candidate>& candidates, std::vector<std::int64_t>& parents) {
    const auto better = [](const Candidate& a, const Candidate& b) {
      return std::tuple(-a.log_probability, a.beam, a.token) < std::tuple(-b.log_probability, b.beam, b.token);
    };
    // Each open answer can end in one way, so twice as many leave enough that stay open.
    const auto kept = std::min<std::ptrdiff_t>(2 * options_.beams, std::ssize(candidates));
    std::ranges::partial_sort(candidates, candidates.begin() + kept, better);
    candidates.resize(static_cast<std::size_t>(kept));
    std::vector<Answer> next;
    parents.clear();
    for (const Candidate& candidate : candidates) {
      Answer answer = open(candidate.beam);
      answer.tokens.push_back(candidate.token);
      answer.log_probability = candidate.log_probability;
      answer.score = score(answer.log_probability, std::ssize(answer.tokens));
      answer.ended = candidate.token == options_.end_token;
      if (answer.ended || std::ssize(answer.tokens) == options_.most_tokens) {
        found_.push_back(std::move(answer));
      } else if (std::ssize(next) < options_.beams) {
        next.push_back(std::move(answer));
        parents.push_back(candidate.beam);
      }
    }
    std::ranges::stable_sort(found_, std::ranges::greater{}, &Answer::score);
    if (std::ssize(found_) > options_.beams) found_.resize(static_cast<std::size_t>(options_.beams));
    open_ = std::move(next);
    if (std::ssize(found_) == options_.beams && best_of_open() <= found_.back().score) open_.clear();
  }

  std::vector<Answer> take() { return std::move(found_); }

 private:
  double score(double log_probability, std::int64_t tokens) const { return log_probability / std::pow(static_cast<double>(tokens), options_.length_penalty); }

  // No continuation has a better score: its log-probability is no larger, and one of both lengths divides it by most.
  double best_of_open() const {
    double best = -HUGE_VAL;
    for (const Answer& answer : open_) {
      best = std::max({best, score(answer.log_probability, std::ssize(answer.tokens) + 1), score(answer.log_probability, options_.most_tokens)});
    }
    return best;
  }

  BeamSearchOptions options_;
  std::vector<Answer> open_, found_;
};

}  // namespace

std::vector<std::vector<Answer>> beam_search(std::span<const std::int64_t> start_tokens, const DecodeStep& step, const BeamSearchOptions& options) {
  require(options.beams >= 1, kOperation, ": beams is ", options.beams, "; it must be at least 1");
  require(options.most_tokens >= 1, kOperation, ": most_tokens is ", options.most_tokens, "; it must be at least 1");
  require(options.end_token >= -1, kOperation, ": end_token is ", options.end_token, "; it must be a token, or -1: there is none");
  require(std::isfinite(options.length_penalty), kOperation, ": length_penalty is ", options.length_penalty, "; it must be finite");
  const std::int64_t beams = options.beams, rows = std::ssize(start_tokens) * beams;
  std::vector<Search> searches(start_tokens.size(), Search(options));
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(rows)), parents(tokens.size());
  for (std::int64_t row = 0; row < rows; ++row) tokens[static_cast<std::size_t>(row)] = start_tokens[static_cast<std::size_t>(row / beams)];
  std::iota(parents.begin(), parents.end(), 0);
  std::int64_t classes = 0;
  while (!std::ranges::all_of(searches, &Search::done)) {
    const ConstTensorView logits = step(tokens, parents);
    require_logits(kOperation, logits);
    if (classes == 0) classes = logits.extent(1);
    require(logits.shape() == Shape({rows, classes}), kOperation, ": the step gave logits ", logits.shape(), "; they must be ", Shape({rows, classes}));
    require(options.end_token < classes, kOperation, ": end_token is ", options.end_token, "; logits have ", classes, " tokens");
    std::vector<std::vector<Candidate>> candidates(searches.size());
    for_each_row_of_logits(kOperation, logits, [&](std::int64_t row, const std::vector<double>& values) {
      const auto sequence = static_cast<std::size_t>(row / beams);
      const Search& search = searches[sequence];
      if (row % beams >= search.open()) return;
      const double largest = *std::ranges::max_element(values);
      double sum = 0;
      for (const double value : values) sum += std::exp(value - largest);
      const double lse = largest + std::log(sum), so_far = search.open(row % beams).log_probability;
      for (std::size_t token = 0; token < values.size(); ++token) {
        if (values[token] == -HUGE_VAL) continue;  // impossible
        candidates[sequence].push_back({row % beams, static_cast<std::int64_t>(token), so_far + values[token] - lse});
      }
    });
    for (std::size_t sequence = 0; sequence < searches.size(); ++sequence) {
      Search& search = searches[sequence];
      if (search.done()) continue;
      std::vector<std::int64_t> beam_of;
      search.extend(candidates[sequence], beam_of);
      const std::int64_t first = static_cast<std::int64_t>(sequence) * beams;
      for (std::int64_t beam = 0; beam < search.open(); ++beam) {
        tokens[static_cast<std::size_t>(first + beam)] = search.open(beam).tokens.back();
        parents[static_cast<std::size_t>(first + beam)] = first + beam_of[static_cast<std::size_t>(beam)];
      }
      for (std::int64_t beam = search.open(); beam < beams; ++beam) parents[static_cast<std::size_t>(first + beam)] = first + beam;
    }
  }
  std::vector<std::vector<Answer>> answers;
  for (Search& search : searches) answers.push_back(search.take());
  return answers;
}

}  // namespace polyhead::nn
