#include "polyhead/models/language_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/text.h"
#include "models/model_parts.h"
#include "nn/cached_attention.h"
#include "nn/check.h"
#include "nn/initialiser.h"

namespace polyhead::models {
namespace {

constexpr const char* kForward = "LanguageModel.forward";

// Returns the output projection. A projection that is tied to the embedding shares memory with it.
nn::Linear output_of(const LanguageModel& model) { return {shared(model.output.weight ? model.output.weight : model.words.weight), Tensor()}; }

// A call's checked sizes.
struct Call {
  Shape ids, lead;              // [*,T] and *
  std::int64_t tokens = 0;      // T
  std::vector<std::int64_t> first;  // with a cache: number of tokens of each sequence before this call
  std::vector<std::int64_t> added;  // with a cache: number of new tokens of each sequence
};

Call checked(const LanguageModel& model, const LanguageInput& input, const LanguageOptions& options) {
  require(static_cast<bool>(input.ids), kForward, ": ids are missing");
  require(input.ids.rank() >= 1, kForward, ": ids is ", input.ids.shape(), "; it must be [*,T]");
  require(std::ssize(model.stack.layers) == model.config.layers && model.config.layers > 0, kForward, ": the model has ", model.stack.layers.size(), " layers; config.layers is ", model.config.layers);
  require(static_cast<bool>(model.stack.final_norm.weight), kForward, ": the model has no final_norm");
  Call call{.ids = input.ids.shape(), .lead = input.ids.shape().first(input.ids.rank() - 1), .tokens = input.ids.extent(-1)};
  if (input.attend_keys) nn::require_exactly(kForward, {"attend_keys", input.attend_keys}, call.ids, DType::boolean);
  require(options.cache != nullptr || !input.new_tokens, kForward, ": new_tokens is given without a cache");
  std::int64_t longest = call.tokens;
  if (options.cache != nullptr) {
    const nn::EncoderCache& cache = *options.cache;
    require(!input.attend_keys, kForward, ": attend_keys cannot be combined with a cache. Put padding at the end and give new_tokens, the number of tokens of each sequence");
    require(call.lead == Shape{cache.sequences()}, kForward, ": ids is ", call.ids, "; the cache has ", cache.sequences(), " sequences, so it must be [", cache.sequences(), ",T]");
    call.first = integers(cache.key_lengths());
    call.added.assign(call.first.size(), call.tokens);
    if (input.new_tokens) {
      nn::require_shape(kForward, {"new_tokens", input.new_tokens}, call.lead);
      require(is_integer(input.new_tokens.dtype()), kForward, ": new_tokens is ", input.new_tokens.dtype(), "; it must be integers");
      call.added = integers(input.new_tokens);
      for (std::size_t b = 0; b < call.added.size(); ++b)
        require(call.added[b] >= 0 && call.added[b] <= call.tokens, kForward, ": new_tokens of sequence ", b, " is ", call.added[b], "; it must be in [0, ", call.tokens, "], the columns of ids");
    }
    longest = 0;
    for (std::size_t b = 0; b < call.first.size(); ++b) longest = std::max(longest, call.first[b] + call.added[b]);
  }
  const std::int64_t positions = model.config.positions;
  require(model.config.rotary || longest <= positions, kForward, ": the text has ", longest, " tokens; the model has positions for ", positions);
  return call;
}

// Returns the text length that determines the rotary angles of a call. Error if the sequences of a cache need different angles.
std::int64_t length_of_angles(const RotaryRule& rule, const Call& call) {
  if (call.first.empty() || rule.limit == 0) return call.tokens;
  std::int64_t longest = 0;
  for (std::size_t b = 0; b < call.first.size(); ++b) longest = std::max(longest, call.first[b] + call.added[b]);
  for (std::size_t b = 0; b < call.first.size(); ++b) {
    const std::int64_t before = call.first[b], after = before + call.added[b];
    require((before == 0 || rule.same_angles(before, after)) && rule.same_angles(after, longest), kForward, ": sequence ", b, " of the cache grows from ", before, " to ", after,
            " tokens, and the longest to ", longest, "; above ", rule.limit, " tokens this model's rotary angles (rope_scaling) depend on a text's length, so its cached keys would be wrong. Compute the whole text again");
  }
  return longest;
}

nn::RotaryTables tables_of(const RotaryRule& rule, const Call& call, const LanguageOptions& options, DType dtype) {
  const nn::RotaryEmbedding embedding(rule.at(length_of_angles(rule, call)));
  const DType precise = accumulation_dtype(dtype);
  return options.cache == nullptr ? embedding.tables(0, call.tokens, precise) : embedding.tables_from(options.cache->key_lengths(), call.tokens, precise);
}

// Returns embedded tokens [*,T,E], with learned positions if the model has them.
Tensor embedded(const LanguageModel& model, const LanguageInput& input, const Call& call, const nn::RunOptions& run) {
  const LanguageModelConfig& config = model.config;
  const DType dtype = config.layer.dtype;
  Tensor x = uninitialised(dtype, appended(call.ids, {config.layer.width}), run.workspace);
  model.words.forward(input.ids, x, {.executor = run.executor});
  if (config.embedding_scale != 1) scale(x, config.embedding_scale, run.executor);
  if (!config.rotary) add_positions(model.positions, call.ids, call.first, 0, x, run.executor);
  return x;
}

// Writes the logits [..,C] of hidden states [..,E].
void write_logits(const LanguageModel& model, ConstTensorView hidden, TensorView logits, const nn::RunOptions& run) {
  const DType dtype = model.config.layer.dtype, precise = accumulation_dtype(dtype);
  Tensor own = logits.dtype() == dtype ? Tensor() : uninitialised(dtype, logits.shape(), run.workspace);
  const TensorView written = own ? own.view() : logits;
  output_of(model).forward(hidden, written, run);
  if (const double cap = model.config.logit_softcap; cap > 0) {
    // Caps logits in float32, because the reciprocal of a cap in bfloat16 would move every logit by up to 0.4 %.
    Tensor wide = dtype == precise ? Tensor() : Tensor::copy_of(written, precise);
    const TensorView capped = wide ? wide.view() : written;
    scale(capped, 1 / cap, run.executor);
    nn::activate(nn::Activation::tanh, capped, capped, run.executor);
    scale(capped, cap, run.executor);
    if (wide || own) copy(capped, logits);
  } else if (own) {
    copy(own, logits);
  }
}

// Returns the hidden states [*,E] of each sequence's last token.
Tensor last_rows(ConstTensorView hidden, const Call& call) {
  if (call.added.empty()) return Tensor::copy_of(hidden.select(-2, call.tokens - 1));
  Tensor rows(hidden.dtype(), {hidden.extent(0), hidden.extent(-1)});
  for (std::int64_t b = 0; b < hidden.extent(0); ++b) copy(hidden.select(0, b).select(0, call.added[static_cast<std::size_t>(b)] - 1), rows.view().select(0, b));
  return rows;
}

void require_outputs(const LanguageModel& model, const LanguageInput& input, const LanguageOutput& output, const LanguageOptions& options, const Call& call) {
  const nn::LayerConfig& layer = model.config.layer;
  const std::int64_t layers = model.config.layers, tokens = call.tokens;
  const Shape hidden = appended(call.ids, {layer.width});
  const auto of_layers = [&](std::int64_t heads, std::int64_t extent) { return with_leading(appended(call.lead, {heads, tokens, extent}), layers); };
  const auto blocks = [&](int axis) { return output.pooled && output.pooled.rank() >= 2 ? output.pooled.extent(axis) : 0; };
  const WantedOutput all[] = {{{"logits", output.logits}, appended(call.ids, {model.config.vocabulary})},
                        {{"next_logits", output.next_logits}, appended(call.lead, {model.config.vocabulary})},
                        {{"hidden", output.hidden}, hidden},
                        {{"all_hidden", output.all_hidden}, with_leading(hidden, layers + 1)},
                        {{"attentions", output.attentions}, of_layers(layer.heads, tokens)},
                        {{"pooled", output.pooled}, with_leading(appended(call.lead, {layer.heads, blocks(-2), blocks(-1)}), layers)},
                        {{"q", output.q}, of_layers(layer.heads, layer.head_width)},
                        {{"k", output.k}, of_layers(layer.kv_heads, layer.head_width)},
                        {{"v", output.v}, of_layers(layer.kv_heads, layer.head_width)}};
  const Operand read[] = {{"ids", input.ids}, {"attend_keys", input.attend_keys}, {"new_tokens", input.new_tokens}};
  require_wanted(kForward, all, read, model);
  require(options.cache == nullptr || !(output.attentions || output.pooled || output.q || output.k || output.v), kForward, ": attentions, pooled, q, k and v cannot be combined with a cache: a call then computes the new tokens only. Compute the whole text without a cache");
  if (!output.next_logits) return;
  require(!input.attend_keys, kForward, ": next_logits cannot be combined with attend_keys: a mask does not tell which token is the last of a sequence. Take a row of logits");
  require(tokens > 0, kForward, ": next_logits needs at least one token; ids is ", call.ids);
  for (std::size_t b = 0; b < call.added.size(); ++b) require(call.added[b] > 0, kForward, ": next_logits needs a new token of each sequence; sequence ", b, " has none");
}

}  // namespace

nn::MultiHeadAttentionConfig LanguageModelConfig::attention(std::int64_t index) const {
  nn::MultiHeadAttentionConfig own{.query_width = layer.width,
                                   .heads = layer.heads,
                                   .kv_heads = layer.kv_heads,
                                   .head_width = layer.head_width,
                                   .bias = layer.bias,
                                   .output_bias = layer.output_bias,
                                   .qk_norm = layer.qk_norm,
                                   .sink = sink,
                                   .scale = attention_scale,
                                   .softcap = attention_softcap,
                                   .dtype = layer.dtype};
  own = completed(own);
  if (scale_by_layer) own.scale = own.scale.value_or(1 / std::sqrt(static_cast<double>(own.head_width))) / static_cast<double>(index + 1);
  return own;
}

std::optional<nn::MixtureOfExpertsConfig> LanguageModelConfig::mixture(std::int64_t index) const {
  if (!experts || (!experts->layers.empty() && !experts->layers.at(static_cast<std::size_t>(index)))) return std::nullopt;
  return nn::MixtureOfExpertsConfig{.width = layer.width,
                                    .hidden_width = experts->hidden_width,
                                    .experts = experts->count,
                                    .chosen = experts->chosen,
                                    .shared_hidden_width = experts->shared_hidden_width,
                                    .activation = layer.activation,
                                    .clamped_gate = experts->clamped_gate,
                                    .normalise = experts->normalise,
                                    .bias = experts->bias,
                                    .router_bias = experts->bias,
                                    .dtype = layer.dtype,
                                    .seed = 0};
}

LanguageModel::LanguageModel(const LanguageModelConfig& given) : config(given) {
  constexpr const char* kName = "LanguageModel";
  require(config.vocabulary >= 1 && config.layers >= 1, kName, ": vocabulary is ", config.vocabulary, " and layers ", config.layers, "; both must be at least 1");
  require(config.rotary || config.positions >= 1, kName, ": positions is ", config.positions, "; learned positions need at least 1, or give rotary");
  require(config.windows.empty() || std::ssize(config.windows) == config.layers, kName, ": windows has ", config.windows.size(), " entries for ", config.layers, " layers");
  require(!config.experts || config.experts->layers.empty() || std::ssize(config.experts->layers) == config.layers, kName, ": experts.layers has ",
          config.experts ? config.experts->layers.size() : 0, " entries for ", config.layers, " layers");
  config.windows.resize(static_cast<std::size_t>(config.layers));
  nn::LayerConfig& layer = config.layer;
  const nn::MultiHeadAttentionConfig attention = config.attention(0);
  layer.kv_heads = attention.kv_heads, layer.head_width = attention.head_width;
  if (layer.hidden_width == 0) layer.hidden_width = 4 * layer.width;
  nn::Initialiser initialiser(layer.seed);
  const auto embedding = [&](std::int64_t count) {
    Tensor weight(layer.dtype, {count, layer.width});
    initialiser.normal(weight, 0, 0.02);
    return nn::Embedding(std::move(weight));
  };
  words = embedding(config.vocabulary);
  if (!config.rotary) positions = embedding(config.positions);
  stack = nn::Encoder(layer, config.layers);
  for (std::int64_t i = 0; i < config.layers; ++i) {
    nn::MultiHeadAttentionConfig own = config.attention(i);
    own.seed = initialiser.child_seed();
    nn::MultiHeadAttention& made = stack.layers[static_cast<std::size_t>(i)].attention;
    const double epsilon = made.q_norm.epsilon;
    made = nn::MultiHeadAttention(own);
    made.q_norm.epsilon = made.k_norm.epsilon = epsilon;
    std::optional<nn::MixtureOfExpertsConfig> mixture = config.mixture(i);
    if (!mixture) continue;
    mixture->seed = initialiser.child_seed();
    nn::EncoderLayer& one = stack.layers[static_cast<std::size_t>(i)];
    one.mixture = nn::MixtureOfExperts(*mixture);
    one.feed_forward = {};
  }
  const auto offset = [&](auto& norm) {
    if (!norm.weight) return;
    norm.weight_offset = config.norm_weight_offset;
    fill(norm.weight, 1 - config.norm_weight_offset);
  };
  for (nn::EncoderLayer& one : stack.layers) {
    for (nn::Norm* norm : {&one.attention_norm, &one.attention_output_norm, &one.feed_forward_norm, &one.feed_forward_output_norm}) offset(*norm);
    offset(one.attention.q_norm), offset(one.attention.k_norm);
  }
  offset(stack.final_norm);
  if (!config.tied_output) output = nn::Linear(embedding(config.vocabulary).weight, Tensor());
}

LanguageModel::RotaryTables LanguageModel::rotary_tables(std::int64_t tokens) const {
  const Call call{.ids = {tokens}, .tokens = tokens};
  RotaryTables tables;
  if (config.rotary) tables.all = tables_of(*config.rotary, call, {}, config.layer.dtype);
  if (config.local_rotary) tables.local = tables_of(*config.local_rotary, call, {}, config.layer.dtype);
  return tables;
}

nn::AttentionOptions LanguageModel::attention_options(std::int64_t layer, const RotaryTables& tables) const {
  nn::AttentionOptions options{.mask = {.causal = Causal::top_left()}};
  const std::int64_t window = config.windows.at(static_cast<std::size_t>(layer));
  if (window > 0) options.mask.window.left = window - 1;
  const std::optional<nn::RotaryTables>& rotary = window > 0 && tables.local ? tables.local : tables.all;
  if (rotary) options.rotary = rotary->rotary();
  return options;
}

void LanguageModel::forward(const LanguageInput& input, const LanguageOutput& outputs, const LanguageOptions& options) const {
  const Call call = checked(*this, input, options);
  require_outputs(*this, input, outputs, options, call);
  const Workspace own;  // lets layers reuse memory if the caller gives no workspace
  const nn::RunOptions run{options.executor, options.workspace != nullptr ? options.workspace : &own};
  RotaryTables tables;
  if (config.rotary) tables.all = tables_of(*config.rotary, call, options, config.layer.dtype);
  if (config.local_rotary) tables.local = tables_of(*config.local_rotary, call, options, config.layer.dtype);
  nn::LengthsRollback before(options.cache != nullptr ? options.cache->layers() : std::span<nn::KeyValueCache>());
  require(options.cache == nullptr || std::ssize(options.cache->layers()) == config.layers, kForward, ": the cache is of another model");

  const LayerOutputs of_layers{outputs.all_hidden, outputs.attentions, outputs.pooled, outputs.pooling, outputs.q, outputs.k, outputs.v};
  const Tensor x = through_encoder(stack, stack.final_norm, embedded(*this, input, call, run), of_layers, run, [&](std::int64_t i) {
    nn::AttentionOptions attention = attention_options(i, tables);
    attention.mask.attend_keys = input.attend_keys, attention.backend = options.backend, attention.executor = run.executor, attention.workspace = run.workspace;
    if (options.cache != nullptr) attention.cache = &options.cache->layers()[static_cast<std::size_t>(i)], attention.new_tokens = input.new_tokens;
    return attention;
  });
  if (outputs.hidden) copy(x, outputs.hidden);
  if (outputs.logits) write_logits(*this, x, outputs.logits, run);
  if (outputs.next_logits) {
    const Tensor last = last_rows(x, call);
    write_logits(*this, last, outputs.next_logits, run);
  }
  before.commit();
}

}  // namespace polyhead::models
