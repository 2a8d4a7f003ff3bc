#include "polyhead/models/any_text_model.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "core/text.h"
#include "io/file_bytes.h"
#include "polyhead/models/ablation.h"
#include "polyhead/models/image_text_model.h"
#include "polyhead/models/language_model.h"
#include "polyhead/models/model_config.h"
#include "polyhead/models/sequence_to_sequence_model.h"
#include "polyhead/models/value_norms.h"

namespace polyhead::models {
namespace {

class AnyEncoder final : public AnyTextModel {
 public:
  explicit AnyEncoder(SentenceModel model) : model_(std::move(model)) {
    const BertConfig& config = model_.encoder.config;
    sizes_ = {.layers = config.layers, .heads = config.heads, .width = config.width, .head_vectors = 3 * config.layers * config.width, .other_embedding = model_.other_embedding, .longest = config.longest()};
  }

  TokenizedText tokenize(std::string_view text, const std::optional<std::string>& pair, WhenTooLong when_too_long, std::int64_t generate) const override {
    require_no_answer(generate);
    TokenizedText tokens = pair ? model_.tokenize(text, *pair, when_too_long) : model_.tokenize(text, when_too_long);
    require(!tokens.ids.empty(), "the text has no token");
    return tokens;
  }

  TextRun run(TokenizedText tokens, const TextRunOptions& options) const override {
    require_no_answer(options.generate);
    return {model_.run(std::move(tokens), {.attentions = options.attentions, .pooled = options.pooled, .head_vectors = options.head_vectors, .value_norms = options.value_norms})};
  }

  double change_without_head(const TextRun& with, std::int64_t layer, std::int64_t head) override {
    return models::change_without_head(model_, with, layer, head);
  }

 private:
  static void require_no_answer(std::int64_t generate) { require(generate == 0, "the model is an encoder, which generates no tokens"); }

  SentenceModel model_;
};

// Adds a token that the model generated; it has no position in the text. A token that the tokenizer does not have is shown by its number.
void add_written(const Tokenizer& tokenizer, std::int64_t id, int segment, bool special, TokenizedText& tokens) {
  tokens.ids.push_back(id);
  tokens.pieces.push_back(tokenizer.piece(id).value_or(cat("<", id, ">")));
  tokens.segments.push_back(segment);
  tokens.special.push_back(special);
  tokens.texts.push_back(0);
  tokens.spans.emplace_back();
}

// Returns the ids that the tokenizer knows. A model's embedding may have more rows than its tokenizer has tokens; the ids of the additional rows have no text.
std::vector<std::int64_t> known_ids(const Tokenizer& tokenizer, const std::vector<std::int64_t>& ids) {
  std::vector<std::int64_t> known;
  std::ranges::copy_if(ids, std::back_inserter(known), [&](std::int64_t id) { return tokenizer.piece(id).has_value(); });
  return known;
}

class AnyDecoder final : public AnyTextModel {
 public:
  AnyDecoder(Tokenizer tokenizer, LanguageModel model) : tokenizer_(std::move(tokenizer)), model_(std::move(model)) {
    const LanguageModelConfig& c = model_.config;
    sizes_ = {.kind = TextModelKind::decoder,
              .layers = c.layers,
              .heads = c.layer.heads,
              .width = c.layer.width,
              .head_vectors = c.layers * (c.layer.heads + 2 * c.layer.kv_heads) * c.layer.head_width,
              .rules_not_followed = c.answer.rules_not_followed,
              .longest = c.rotary ? std::nullopt : std::optional(c.positions)};
  }

  TokenizedText tokenize(std::string_view text, const std::optional<std::string>& pair, WhenTooLong when_too_long, std::int64_t generate) const override {
    require(!pair, "a pair of texts is for encoders; this model reads one text");
    EncodeOptions options{.when_too_long = when_too_long};
    if (sizes_.longest) {
      require(generate < *sizes_.longest, generate, " tokens shall be generated; the model has positions for ", *sizes_.longest, ", the text included");
      options.max_length = *sizes_.longest - generate;
    }
    TokenizedText tokens = tokenizer_.encode(text, options);
    require(!tokens.ids.empty(), "the text has no token");
    return tokens;
  }

  TextRun run(TokenizedText tokens, const TextRunOptions& options) const override {
    TextRun result{{.tokens = std::move(tokens)}};
    if (options.generate != 0) append_answer(&result, options.generate);
    const std::vector<std::int64_t>& ids = result.tokens.ids;
    const LanguageModelConfig& c = model_.config;
    const std::int64_t count = std::ssize(ids), layers = c.layers;
    const DType dtype = accumulation_dtype(c.layer.dtype);
    result.ids = Tensor::of<std::int64_t>({count}, std::span<const std::int64_t>(ids));
    if (options.attentions) result.attentions = Tensor(dtype, {layers, c.layer.heads, count, count});
    if (options.pooled != 0) result.pooled = Tensor(dtype, {layers, c.layer.heads, std::min(options.pooled, count), std::min(options.pooled, count)});
    result.hidden = Tensor(dtype, {count, c.layer.width});
    if (options.head_vectors && weights_follow_from_vectors()) {
      result.q = Tensor(dtype, {layers, c.layer.heads, count, c.layer.head_width});
      for (Tensor* keys : {&result.k, &result.v}) *keys = Tensor(dtype, {layers, c.layer.kv_heads, count, c.layer.head_width});
      result.scale = c.attention_scale;
      result.attend = attended(count);
      const LanguageModel::RotaryTables tables = model_.rotary_tables(count);
      std::vector<nn::Rotary> rotaries;
      for (std::int64_t i = 0; i < layers; ++i) rotaries.push_back(model_.attention_options(i, tables).rotary);
      result.rotations = layer_rotations(rotaries);
    }
    Tensor values;  // v of all layers, from which value_norms is computed, if the caller did not ask for v
    if (options.value_norms && !result.v) values = Tensor(dtype, {layers, c.layer.kv_heads, count, c.layer.head_width});
    Tensor& v = result.v ? result.v : values;
    model_.forward({.ids = result.ids}, {.hidden = result.hidden, .attentions = result.attentions, .pooled = result.pooled, .q = result.q, .k = result.k, .v = v}, {.workspace = &workspace_});
    if (options.value_norms) result.value_norms = models::value_norms(model_, v, {.workspace = &workspace_});
    return result;
  }

  double change_without_head(const TextRun&, std::int64_t, std::int64_t) override {
    fail(ErrorCode::unsupported, "the effect of a head is measured on the embedding of a text, which decoders do not compute");
  }

 private:
  void append_answer(TextRun* text, std::int64_t most) const {
    std::vector<std::int64_t>& ids = text->tokens.ids;
    require(!sizes_.longest || most <= *sizes_.longest - std::ssize(ids), "the text has ", ids.size(), " tokens and ", most, " more are asked for; the model has positions for ",
            sizes_.longest.value_or(0));
    const std::vector<std::int64_t> answer = model_.generate(ids, {.max_tokens = most, .workspace = &workspace_});
    text->generated = decoded_after(ids, answer);
    for (const std::int64_t id : answer) add_written(tokenizer_, id, 1, false, text->tokens);
  }

  // Decodes prompt and answer in one call: an answer that is decoded alone loses the space before its first word.
  std::string decoded_after(const std::vector<std::int64_t>& prompt, const std::vector<std::int64_t>& answer) const {
    const std::vector<std::int64_t> known = known_ids(tokenizer_, answer);
    std::vector<std::int64_t> whole = prompt;
    whole.insert(whole.end(), known.begin(), known.end());
    const std::string before = tokenizer_.decode(prompt), both = tokenizer_.decode(whole);
    return both.starts_with(before) ? both.substr(before.size()) : tokenizer_.decode(known);
  }

  bool weights_follow_from_vectors() const {
    const auto has_sink = [](const EncoderLayer& layer) { return static_cast<bool>(layer.attention.sink); };
    return model_.config.attention_softcap == 0 && !model_.config.scale_by_layer && std::ranges::none_of(model_.stack.layers, has_sink);
  }

  Tensor attended(std::int64_t count) const {
    const std::vector<std::int64_t>& windows = model_.config.windows;
    Tensor attend(DType::boolean, {model_.config.layers, 1, count, count});
    bool* at = attend.data<bool>();
    for (std::int64_t layer = 0; layer < model_.config.layers; ++layer) {
      const std::int64_t window = windows.empty() ? 0 : windows[static_cast<std::size_t>(layer)];
      for (std::int64_t t = 0; t < count; ++t)
        for (std::int64_t s = 0; s < count; ++s) *at++ = s <= t && (window == 0 || t - s < window);
    }
    return attend;
  }

  Tokenizer tokenizer_;
  LanguageModel model_;
  Workspace workspace_{Parameters::constant};
};

// Runs the text side of CLIP or SigLIP.
class AnyTextSide final : public AnyTextModel {
 public:
  AnyTextSide(Tokenizer tokenizer, TextSide model) : tokenizer_(std::move(tokenizer)), model_(std::move(model)) {
    const TextSideConfig& c = model_.config;
    sizes_ = {.layers = c.layers, .heads = c.layer.heads, .width = c.layer.width, .head_vectors = 3 * c.layers * c.layer.width, .longest = c.positions};
  }

  TokenizedText tokenize(std::string_view text, const std::optional<std::string>& pair, WhenTooLong when_too_long, std::int64_t generate) const override {
    require(!pair, "only encoders such as BERT read a pair of texts; this model reads one text");
    require(generate == 0, "the model compares texts with images; it generates no tokens");
    TokenizedText tokens = tokenizer_.encode(text, {.max_length = model_.config.positions, .when_too_long = when_too_long});
    require(!tokens.ids.empty(), "the text has no token");
    return tokens;
  }

  TextRun run(TokenizedText tokens, const TextRunOptions& options) const override {
    require(options.generate == 0, "the model compares texts with images; it generates no tokens");
    const TextSideConfig& c = model_.config;
    const DType dtype = accumulation_dtype(c.layer.dtype);
    TextRun result{{.tokens = std::move(tokens)}};
    const std::int64_t count = std::ssize(result.tokens.ids);
    result.ids = Tensor::of<std::int64_t>({count}, std::span<const std::int64_t>(result.tokens.ids));
    result.attentions = Tensor(dtype, {c.layers, c.layer.heads, count, count});
    result.hidden = Tensor(dtype, {count, c.layer.width});
    if (model_.embedding_width() > 0) result.embedding = Tensor(dtype, {model_.embedding_width()});
    if (options.head_vectors) {
      for (Tensor* vectors : {&result.q, &result.k, &result.v}) *vectors = Tensor(dtype, {c.layers, c.layer.heads, count, c.layer.width / c.layer.heads});
      if (c.causal) {
        result.attend = Tensor(DType::boolean, {1, 1, count, count});
        for (std::int64_t i = 0; i < count * count; ++i) result.attend.data<bool>()[i] = i % count <= i / count;
      }
    }
    Tensor values;  // v of all layers, from which value_norms is computed, if the caller did not ask for v
    if (options.value_norms && !result.v) values = Tensor(dtype, {c.layers, c.layer.heads, count, c.layer.width / c.layer.heads});
    Tensor& v = result.v ? result.v : values;
    model_.forward({.ids = result.ids}, {.hidden = result.hidden, .attentions = result.attentions, .q = result.q, .k = result.k, .v = v, .embedding = result.embedding}, {.workspace = &workspace_});
    if (options.value_norms) result.value_norms = models::value_norms(model_, v, {.workspace = &workspace_});
    return result;
  }

  double change_without_head(const TextRun&, std::int64_t, std::int64_t) override { fail(ErrorCode::unsupported, "switching heads off is not supported for the text encoder of an image-text model"); }

 private:
  Tokenizer tokenizer_;
  TextSide model_;
  Workspace workspace_{Parameters::constant};
};

class AnyTwoSides final : public AnyTextModel {
 public:
  AnyTwoSides(Tokenizer tokenizer, SequenceToSequenceModel model) : tokenizer_(std::move(tokenizer)), model_(std::move(model)) {
    const SequenceToSequenceConfig& c = model_.config;
    sizes_ = {.kind = TextModelKind::two_sides,
              .layers = c.encoder_layers,
              .heads = c.encoder.heads,
              .width = c.encoder.width,
              .target_layers = c.decoder_layers,
              .target_heads = c.decoder.heads,
              .rules_not_followed = c.answer.rules_not_followed,
              .longest = c.source_positions > 0 ? std::optional(c.source_positions) : std::nullopt};
  }

  TokenizedText tokenize(std::string_view text, const std::optional<std::string>& pair, WhenTooLong when_too_long, std::int64_t generate) const override {
    require(!pair, "a pair of texts is for encoders; this model reads one text");
    const std::int64_t most = model_.config.target_positions;
    require(most == 0 || generate <= most - 1, generate, " tokens shall be generated; the model has positions for ", most, ", the start token included");
    TokenizedText tokens = tokenizer_.encode(text, {.max_length = sizes_.longest, .when_too_long = when_too_long});
    require(!tokens.ids.empty(), "the text has no token");
    return tokens;
  }

  TextRun run(TokenizedText tokens, const TextRunOptions& options) const override {
    if (options.value_norms) fail(ErrorCode::unsupported, "norm-weighted maps need the values of the heads, and polyhead keeps none of models with an encoder and a decoder");
    const SequenceToSequenceConfig& c = model_.config;
    const SequenceToSequenceOptions run{.workspace = &workspace_};
    const DType dtype = accumulation_dtype(c.encoder.dtype);
    const std::int64_t count = std::ssize(tokens.ids);
    TextRun result{{.tokens = std::move(tokens)}};
    result.ids = Tensor::of<std::int64_t>({count}, std::span<const std::int64_t>(result.tokens.ids));
    result.attentions = Tensor(dtype, {c.encoder_layers, c.encoder.heads, count, count});
    Tensor memory(c.encoder.dtype, {count, c.encoder.width});
    model_.encode({.ids = result.ids}, {.memory = memory, .attentions = result.attentions}, run);
    result.hidden = Tensor::copy_of(memory, dtype);
    if (options.generate != 0) write_target(result, memory, options.generate);
    return result;
  }

  double change_without_head(const TextRun&, std::int64_t, std::int64_t) override {
    fail(ErrorCode::unsupported, "the effect of a head is measured on the embedding of a text, which models with an encoder and a decoder do not compute");
  }

 private:
  void write_target(TextRun& result, const Tensor& memory, std::int64_t most) const {
    const SequenceToSequenceConfig& c = model_.config;
    const DType dtype = accumulation_dtype(c.encoder.dtype);
    const std::vector<std::int64_t> answer = model_.generate(result.tokens.ids, {.max_tokens = most, .workspace = &workspace_});
    TextTarget target;
    add_target(*c.answer.start_token, target.tokens);
    for (const std::int64_t id : answer) add_target(id, target.tokens);
    const std::int64_t rows = std::ssize(target.tokens.ids), columns = memory.extent(0);
    target.ids = Tensor::of<std::int64_t>({rows}, std::span<const std::int64_t>(target.tokens.ids));
    target.cross_attentions = Tensor(dtype, {c.decoder_layers, c.decoder.heads, rows, columns});
    target.attentions = Tensor(dtype, {c.decoder_layers, c.decoder.heads, rows, rows});
    model_.decode({.ids = target.ids, .memory = memory}, {.attentions = target.attentions, .cross_attentions = target.cross_attentions}, {.workspace = &workspace_});
    const std::vector<std::int64_t> known = has_words_of_target() ? known_ids(tokenizer_, answer) : std::vector<std::int64_t>();
    result.generated = tokenizer_.decode(known);
    result.target = std::move(target);
  }

  // Returns false if the target has another vocabulary than the source: tokenizer.json covers only the vocabulary of the source.
  bool has_words_of_target() const { return model_.config.shared_embedding; }

  void add_target(std::int64_t id, TokenizedText& tokens) const {
    const auto& added = tokenizer_.added_tokens();
    const bool special = has_words_of_target() && std::ranges::any_of(added, [&](const AddedToken& token) { return token.id == id && token.special; });
    add_written(tokenizer_, id, 0, special, tokens);
    if (!has_words_of_target()) tokens.pieces.back() = cat("<", id, ">");
  }

  Tokenizer tokenizer_;
  SequenceToSequenceModel model_;
  Workspace workspace_{Parameters::constant};
};

std::unique_ptr<AnyTextModel> load_two_sides(const std::filesystem::path& folder) {
  SequenceToSequenceModel model = load_sequence_to_sequence_model(folder);
  if (model.config.features > 0)
    fail(ErrorCode::unsupported, "models of the type ", model.config.family, " read features of sound, not a text; in Python, polyhead.models.load(...).run(features, ...) takes them");
  return std::make_unique<AnyTwoSides>(load_tokenizer(folder), std::move(model));
}

}  // namespace

TextModelKind text_model_kind(const std::filesystem::path& folder) {
  for (const auto& [name, value] : read_config(folder)) {
    const auto* const family = std::get_if<std::string>(&value);
    if (name != "model" || family == nullptr) continue;
    const auto is_in = [&](const std::vector<std::string_view>& known) { return std::ranges::find(known, *family) != known.end(); };
    if (is_in(language_families())) return TextModelKind::decoder;
    if (is_in(sequence_to_sequence_families())) return TextModelKind::two_sides;
  }
  return TextModelKind::encoder;
}

std::int64_t AnyTextModel::Sizes::attention_weights(std::int64_t tokens, std::int64_t generate) const {
  if (kind != TextModelKind::two_sides) return numel({layers, heads, tokens + generate, tokens + generate});
  const std::int64_t written = generate == 0 ? 0 : generate + 1;
  const std::int64_t parts[] = {numel({layers, heads, tokens, tokens}), numel({target_layers, target_heads, written, tokens}), numel({target_layers, target_heads, written, written})};
  std::int64_t sum = 0;
  for (const std::int64_t part : parts) require(!__builtin_add_overflow(sum, part, &sum), "the attention weights of ", tokens, " tokens and ", generate, " more are too many to count");
  return sum;
}

std::unique_ptr<AnyTextModel> load_any_text_model(const std::filesystem::path& folder) {
  if (const auto kind = image_model_kind(folder)) {
    if (*kind == ImageModelKind::vision) fail(ErrorCode::unsupported, "it is a model of images, which reads no text; `polyhead view MODEL_DIR --image PATH` shows what it reads in an image");
    // Without tokenizer.json, load_tokenizer() would read CLIP's vocab.json and merges.txt by the rules of GPT-2, which differ.
    if (!io::file_exists(folder / "tokenizer.json")) fail(ErrorCode::io, "'", folder.string(), "' lacks tokenizer.json, which a model of images and texts needs for a text");
    return std::make_unique<AnyTextSide>(load_tokenizer(folder), load_text_side(folder));
  }
  switch (text_model_kind(folder)) {
    case TextModelKind::decoder: return std::make_unique<AnyDecoder>(load_tokenizer(folder), load_language_model(folder));
    case TextModelKind::two_sides: return load_two_sides(folder);
    case TextModelKind::encoder: break;
  }
  return std::make_unique<AnyEncoder>(load_bert(folder));
}

}  // namespace polyhead::models
