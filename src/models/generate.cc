#include <algorithm>

#include "core/text.h"
#include "polyhead/models/language_model.h"
#include "polyhead/nn/sampling.h"

namespace polyhead::models {
namespace {

constexpr const char* kGenerate = "LanguageModel.generate";

void require_options(const LanguageModelConfig& config, std::size_t prompt, const GenerateOptions& options) {
  require(prompt > 0, kGenerate, ": the prompt is empty; it needs a token");
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  require(options.max_tokens >= 1 && options.max_tokens <= kMost, kGenerate, ": max_tokens is ", options.max_tokens, "; it must be in [1, 2^40]");
  require(options.temperature.has_value() || (options.top_k == 0 && options.top_p == 1), kGenerate, ": top_k or top_p without a temperature; the likeliest token needs neither");
  require(!options.temperature || options.seed, kGenerate, ": a temperature needs a seed, for example .seed = 1");
  const auto longest = static_cast<std::int64_t>(prompt) + options.max_tokens - 1;
  require(config.rotary || longest <= config.positions, kGenerate, ": ", prompt, " tokens and an answer of up to ", options.max_tokens, " need ", longest, " positions; the model has ",
          config.positions);
}

}  // namespace

std::vector<std::int64_t> LanguageModel::generate(std::span<const std::int64_t> prompt, const GenerateOptions& options) const {
  require_options(config, prompt.size(), options);
  std::vector<std::int64_t> text(prompt.begin(), prompt.end());
  nn::EncoderCache tokens = cache({.sequences = 1, .capacity = std::ssize(text) + options.max_tokens - 1, .dtype = options.cache_dtype});
  constexpr std::int64_t kFew = 4;  // packing the parameters costs about as much as two tokens save
  const Workspace own(options.max_tokens > kFew ? Parameters::constant : Parameters::may_change);
  Tensor logits(config.layer.dtype == DType::f64 ? DType::f64 : DType::f32, {1, config.vocabulary}), token(DType::i64, {1});
  const auto keeps_angles = [&](const std::optional<RotaryRule>& rule, std::int64_t before) { return !rule || before == 0 || rule->same_angles(before, std::ssize(text)); };
  const auto ends = [&](std::int64_t id) {
    return std::ranges::find(options.stop_tokens, id) != options.stop_tokens.end() ||
           (!options.ignore_end && std::ranges::find(config.end_tokens, id) != config.end_tokens.end());
  };
  for (bool open = true; open;) {
    std::int64_t before = tokens.length(0);
    if (!keeps_angles(config.rotary, before) || !keeps_angles(config.local_rotary, before)) tokens.clear(), before = 0;
    const ConstTensorView ids(text.data() + before, {1, std::ssize(text) - before});
    forward({.ids = ids}, {.next_logits = logits},
            {.cache = &tokens, .backend = options.backend, .executor = options.executor, .workspace = options.workspace != nullptr ? options.workspace : &own});
    if (options.temperature) {
      nn::sample_tokens(logits, token,
                        {.temperature = *options.temperature, .top_k = options.top_k, .top_p = options.top_p, .seed = options.seed, .position = static_cast<std::uint64_t>(text.size())});
    } else {
      nn::greedy_tokens(logits, token);
    }
    const std::int64_t id = token.data<std::int64_t>()[0];
    text.push_back(id);
    const bool wanted = !options.on_token || options.on_token(id);
    open = wanted && !ends(id) && std::ssize(text) - std::ssize(prompt) < options.max_tokens;
  }
  return {text.begin() + std::ssize(prompt), text.end()};
}

}  // namespace polyhead::models
