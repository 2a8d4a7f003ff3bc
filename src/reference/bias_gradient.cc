#include "reference/bias_gradient.h"

#include "core/parallel.h"

namespace polyhead::reference {

// If T = 0, d_bias is empty, but d_bias_given must still be set to zero.
BiasGradient::BiasGradient(const BackwardProblem& problem)
    : problem_(problem), sums_(problem.d_bias ? problem.d_bias_given : problem.d_relative_bias) {
  if (problem.d_bias) pairs_ = sums_.view().expand(problem.d_bias.shape());
}

void BiasGradient::add(std::int64_t b, std::int64_t n, std::int64_t t, const std::vector<double>& d_score) const {
  if (problem_.d_relative_bias) {
    const Document& document = document_of(problem_, t);
    double* const head = sums_.view().data<double>() + n * sums_.view().stride(0);
    for (std::int64_t s = document.keys.first; s < document.keys.last; ++s)
      head[relative_index(problem_, b, document, t, s) * sums_.view().stride(1)] += d_score[static_cast<std::size_t>(s)];
    return;
  }
  const auto slice = head_slice<double>(pairs_, b, n);
  for (std::size_t s = 0; s < d_score.size(); ++s) slice(t, static_cast<std::int64_t>(s)) += d_score[s];
}

void for_each_kv_head(const BackwardProblem& problem, const std::function<void(std::int64_t b, std::int64_t kv, BiasGradient* d_bias)>& f) {
  // Skip all heads if T = S = 0: such tensors may have 2^62 heads, and a loop over these heads would not end.
  const std::int64_t count = problem.queries == 0 && problem.keys == 0 ? 0 : problem.batch * problem.kv_heads;
  // Heads and sequences may add to the same elements. One thread runs them all, so that the order of the sums is fixed.
  if (problem.d_bias || problem.d_relative_bias) {
    BiasGradient d_bias(problem);
    for (std::int64_t head = 0; head < count; ++head) f(head / problem.kv_heads, head % problem.kv_heads, &d_bias);
    d_bias.store();
    return;
  }
  // If gradients of a score rule are computed, one thread runs all heads, because sequences may add to the same sums.
  parallel_for(count, problem.d_score_rule ? count : 1, problem.executor, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t head = first; head < last; ++head) f(head / problem.kv_heads, head % problem.kv_heads, nullptr);
  });
}

}  // namespace polyhead::reference
