#include "core/text.h"
#include "models/answer.h"
#include "polyhead/models/language_model.h"

namespace polyhead::models {
namespace {

constexpr std::int64_t kFew = 4;  // parameters are packed only for more tokens than this: packing takes as long as it saves in about two tokens

}  // namespace

std::vector<std::int64_t> LanguageModel::generate(std::span<const std::int64_t> prompt, const GenerateOptions& options) const {
  const Answering call{"LanguageModel.generate", config.vocabulary, accumulation_dtype(config.layer.dtype), config.answer, options};
  require_answer(call, prompt.size(), config.rotary ? 0 : config.positions);
  nn::EncoderCache tokens = cache({.sequences = 1, .capacity = std::ssize(prompt) + options.max_tokens - 1, .dtype = options.cache_dtype});
  const Workspace own(options.max_tokens > kFew ? Parameters::constant : Parameters::may_change);
  return answer(call, prompt, [&](std::span<const std::int64_t> text, TensorView logits) {
    const auto keeps_angles = [&](const std::optional<RotaryRule>& rule, std::int64_t before) { return !rule || before == 0 || rule->same_angles(before, std::ssize(text)); };
    std::int64_t before = tokens.length(0);
    if (!keeps_angles(config.rotary, before) || !keeps_angles(config.local_rotary, before)) tokens.clear(), before = 0;
    const ConstTensorView ids(text.data() + before, {1, std::ssize(text) - before});
    forward({.ids = ids}, {.next_logits = logits},
            {.cache = &tokens, .backend = options.backend, .executor = options.executor, .workspace = options.workspace != nullptr ? options.workspace : &own});
  });
}

std::vector<std::int64_t> SequenceToSequenceModel::generate(const SourceInput& source, const GenerateOptions& options, std::span<const std::int64_t> prompt) const {
  const Answering call{"SequenceToSequenceModel.generate", config.target_vocabulary, accumulation_dtype(config.encoder.dtype), config.answer, options};
  const bool heard = config.features > 0;
  require(heard || source.ids.numel() > 0, call.operation, ": the source is empty; it needs a token");
  require(heard ? source.features.rank() == 2 : source.ids.rank() == 1 && !source.attend_keys, call.operation, heard ? ": features must be of one source, [M,F]" : ": ids must be of one source, [S], without attend_keys");
  const std::int64_t start = config.answer.start_token.value_or(-1);
  if (prompt.empty()) {
    require(start >= 0, call.operation, ": neither generation_config.json nor config.json has decoder_start_token_id or bos_token_id; give a prompt");
    prompt = {&start, 1};
  }
  require_answer(call, prompt.size(), config.target_positions);
  const Workspace own(options.max_tokens > kFew ? Parameters::constant : Parameters::may_change);
  const Workspace* const workspace = options.workspace != nullptr ? options.workspace : &own;
  SequenceToSequenceOptions run{.backend = options.backend, .executor = options.executor, .workspace = workspace};
  Tensor memory(config.encoder.dtype, {heard ? config.source_positions : source.ids.extent(0), config.encoder.width});
  encode(source, {.memory = memory}, run);
  nn::DecoderCache tokens = cache(memory.view().unsqueeze(0), std::ssize(prompt) + options.max_tokens - 1, {}, options.cache_dtype, {options.executor, workspace});
  run.cache = &tokens;
  return answer(call, prompt, [&](std::span<const std::int64_t> text, TensorView logits) {
    const std::int64_t before = tokens.length(0);
    decode({.ids = ConstTensorView(text.data() + before, {1, std::ssize(text) - before})}, {.next_logits = logits}, run);
  });
}

}  // namespace polyhead::models
