#include "models/answer.h"

#include <algorithm>
#include <limits>

#include "core/text.h"
#include "polyhead/nn/sampling.h"

namespace polyhead::models {
namespace {

void choose(const Answering& call, TensorView logits, std::size_t position, TensorView token) {
  const GenerateOptions& options = call.options;
  if (!options.temperature) return nn::greedy_tokens(logits, token);
  nn::sample_tokens(logits, token,
                    {.temperature = *options.temperature, .top_k = options.top_k, .top_p = options.top_p, .seed = options.seed, .position = static_cast<std::uint64_t>(position)});
}

void suppress(TensorView logits, std::span<const std::int64_t> ids) {
  for (const std::int64_t id : ids)
    if (id < logits.extent(1)) fill(logits.select(1, id), -std::numeric_limits<double>::infinity());
}

}  // namespace

void require_answer(const Answering& call, std::size_t prompt, std::int64_t positions) {
  const GenerateOptions& options = call.options;
  const char* const operation = call.operation;
  require(prompt > 0, operation, ": the prompt is empty; it needs a token");
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  require(options.max_tokens >= 1 && options.max_tokens <= kMost, operation, ": max_tokens is ", options.max_tokens, "; it must be in [1, 2^40]");
  require(options.temperature.has_value() || (options.top_k == 0 && options.top_p == 1), operation, ": top_k or top_p is given without a temperature; the likeliest token needs neither");
  require(options.temperature.has_value() || !options.seed, operation, ": seed is given without a temperature; the likeliest token needs no seed");
  require(!options.temperature || options.seed, operation, ": a temperature needs a seed, for example .seed = 1");
  const auto longest = static_cast<std::int64_t>(prompt) + options.max_tokens - 1;
  require(positions == 0 || longest <= positions, operation, ": a prompt of ", prompt, " and an answer of up to ", options.max_tokens, " tokens need ", longest, " positions (the last token needs none); the model has ", positions);
  for (const std::optional<std::int64_t>& forced : {call.rules.forced_first, call.rules.forced_last})
    require(!forced || (*forced >= 0 && *forced < call.vocabulary), operation, ": the forced token ", forced.value_or(0), " is not in the vocabulary of ", call.vocabulary);
  for (const std::int64_t id : options.stop_tokens)
    require(id >= 0 && id < call.vocabulary, operation, ": stop_tokens has ", id, "; tokens are in [0, ", call.vocabulary, "), the vocabulary");
}

std::vector<std::int64_t> answer(const Answering& call, std::span<const std::int64_t> prompt, const std::function<void(std::span<const std::int64_t>, TensorView)>& next) {
  const GenerateOptions& options = call.options;
  const AnswerRules& rules = call.rules;
  std::vector<std::int64_t> text(prompt.begin(), prompt.end());
  Tensor logits(call.logits_dtype, {1, call.vocabulary}), token(DType::i64, {1});
  const auto is_in = [](const std::vector<std::int64_t>& list, std::int64_t id) { return std::ranges::find(list, id) != list.end(); };
  const bool forces_first = rules.forced_first && prompt.size() == 1;
  for (std::int64_t count = 1;; ++count) {
    std::int64_t id = 0;
    const bool last = count == options.max_tokens && rules.forced_last, first = count == 1 && forces_first;
    if (last || first) {
      id = last ? *rules.forced_last : *rules.forced_first;
    } else {
      next(text, logits);
      suppress(logits, rules.suppressed);
      if (count == (forces_first ? 2 : 1)) suppress(logits, rules.suppressed_first);
      choose(call, logits, text.size(), token);
      id = token.data<std::int64_t>()[0];
    }
    text.push_back(id);
    const bool wanted = !options.on_token || options.on_token(id);
    const bool ends = is_in(options.stop_tokens, id) || (!options.ignore_end && is_in(rules.end_tokens, id));
    if (!wanted || ends || count == options.max_tokens) break;
  }
  return {text.begin() + std::ssize(prompt), text.end()};
}

}  // namespace polyhead::models
