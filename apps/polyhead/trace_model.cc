#include "trace_model.h"

#include <optional>
#include <span>
#include <utility>

#include "arguments.h"
#include "core/text.h"
#include "polyhead/models/language_model.h"
#include "text_layout.h"
#include "view_input.h"

namespace polyhead::app {
namespace {

std::int64_t read_layer(const std::string& layer, std::int64_t layers) {
  const std::optional<std::int64_t> index = layer.empty() ? 0 : parse<std::int64_t>(layer);
  if (!index || *index < 0 || *index >= layers) throw UsageError(cat("--layer: there is no layer '", printable(layer), "'; with a model it is a number, 0 to ", layers - 1));
  return *index;
}

void require_small_text(std::int64_t heads, std::int64_t tokens, std::int64_t most_scores) {
  require(numel({heads, tokens, tokens}) <= most_scores, "trace: the scores of ", tokens, " tokens are ", Shape{heads, tokens, tokens}, ", which is too large; a trace has at most ", most_scores, " scores");
}

// Moves the attention of an encoder layer into `taken`, and computes the input of this attention from all_hidden [L+1,T,E], the hidden states of all layers.
void take_layer(nn::EncoderLayer& own, const Tensor& all_hidden, ModelLayer& taken) {
  taken.input = Tensor::copy_of(all_hidden.view().select(0, taken.index).unsqueeze(0));
  taken.normed = own.norm_position != nn::NormPosition::post && own.attention_norm.weight;
  if (taken.normed) {
    const Tensor unnormed = Tensor::copy_of(taken.input);
    own.attention_norm.forward(unnormed, taken.input);
  }
  taken.attention = std::move(own.attention);
}

ModelLayer encoder_layer(const std::string& folder, const std::string& text, const std::string& layer, std::int64_t most_scores) {
  models::SentenceModel model = open_model(folder);
  const models::BertConfig& config = model.encoder.config;
  ModelLayer taken{.family = config.family, .names = models::attention_names(config.family), .index = read_layer(layer, config.layers), .layers = config.layers};
  models::TokenizedText tokens = tokenize(model, text);
  const std::int64_t length = std::ssize(tokens.ids);
  require_small_text(config.heads, length, most_scores);
  models::SentenceResult result = model.run(std::move(tokens), {.attentions = false, .all_hidden = true});
  take_layer(model.encoder.layers[model.encoder.parameters_of(taken.index)], result.all_hidden, taken);
  taken.pieces = std::move(result.tokens.pieces);
  // A relative bias is a view of the model's memory, so the model is kept too.
  struct Kept {
    models::SentenceModel model;
    models::BertEncoder::RotaryTables rotary;
  };
  const auto kept = std::make_shared<Kept>(Kept{.model = std::move(model), .rotary = {}});
  kept->rotary = kept->model.encoder.rotary_tables(length);
  taken.options = kept->model.encoder.attention_options(taken.index, kept->rotary);
  taken.kept = kept;
  return taken;
}

ModelLayer decoder_layer(const std::string& folder, const std::string& text, const std::string& layer, std::int64_t most_scores) {
  models::LanguageModel model = open_language_model(folder);
  const models::LanguageModelConfig& config = model.config;
  ModelLayer taken{.family = config.family, .names = models::language_attention_names(config.family), .index = read_layer(layer, config.layers), .layers = config.layers};
  const models::Tokenizer tokenizer = models::load_tokenizer(folder);
  const std::optional<std::int64_t> longest = config.rotary ? std::nullopt : std::optional(config.positions);
  const auto encode = [&](const InputText& given) { return tokenizer.encode(given.text, {.max_length = longest, .when_too_long = models::WhenTooLong::longest_first}); };
  models::TokenizedText tokens = std::move(tokenize(encode, longest, {{text, std::nullopt}}, false, "give a shorter text")[0]);
  const std::int64_t length = std::ssize(tokens.ids);
  require(length > 0, "the text has no token");
  require_small_text(config.layer.heads, length, most_scores);
  const Tensor ids = Tensor::of<std::int64_t>({length}, std::span<const std::int64_t>(tokens.ids));
  Tensor all_hidden(config.layer.dtype, {config.layers + 1, length, config.layer.width});
  model.forward({.ids = ids}, {.all_hidden = all_hidden});
  const auto rotary = std::make_shared<models::LanguageModel::RotaryTables>(model.rotary_tables(length));
  taken.options = model.attention_options(taken.index, *rotary);
  taken.kept = rotary;
  take_layer(model.stack.layers[static_cast<std::size_t>(taken.index)], all_hidden, taken);
  taken.pieces = std::move(tokens.pieces);
  return taken;
}

}  // namespace

ModelLayer model_layer(const std::string& model, const std::string& text, const std::string& layer, std::int64_t most_scores) {
  switch (kind_of_text_model(model)) {
    case models::TextModelKind::decoder: return decoder_layer(model, text, layer, most_scores);
    case models::TextModelKind::two_sides:
      fail(ErrorCode::unsupported, "'", model, "' is an encoder-decoder model, and `trace` does not show layers of such models; `view` shows the model's maps, and `trace --parameters FILE --prefix ...` traces one attention layer of the model's file");
    case models::TextModelKind::encoder: break;
  }
  return encoder_layer(model, text, layer, most_scores);
}

}  // namespace polyhead::app
