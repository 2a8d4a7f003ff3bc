#include "polyhead/models/sentence_model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include "models/sentence_modules.h"
#include "nn/check.h"
#include "nn/elementwise.h"
#include "polyhead/models/value_norms.h"

namespace polyhead::models {
namespace {

template <class T>
Tensor int64_tensor(const std::vector<T>& values) {
  Tensor tensor(DType::i64, {static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.data<std::int64_t>());
  return tensor;
}

EncodeOptions limits(const BertEncoder& encoder, WhenTooLong when_too_long) {
  return {.max_length = encoder.config.longest(), .when_too_long = when_too_long};
}

// Returns the relative bias of every query-key pair, [1,N,T,T].
Tensor bias_of_pairs(const BertEncoder& encoder, std::int64_t length, DType dtype) {
  const std::int64_t heads = encoder.config.heads, buckets = encoder.config.relative_buckets;
  const Tensor table = Tensor::copy_of(encoder.relative_bias, DType::f64);
  const RelativeBias rule = encoder.attention_options(0, {}).relative_bias;
  Tensor bias(DType::f64, {1, heads, length, length});
  double* at = bias.data<double>();
  for (std::int64_t n = 0; n < heads; ++n)
    for (std::int64_t t = 0; t < length; ++t)
      for (std::int64_t s = 0; s < length; ++s)
        *at++ = table.data<double>()[relative_bucket(s - t, buckets, rule.bidirectional, rule.max_distance) * heads + n];
  return Tensor::copy_of(bias, dtype);
}

// Returns bool [L,1,T,T]: true for the query-key pairs that lie in the window of the layer.
Tensor pairs_of_windows(const std::vector<std::int64_t>& windows, std::int64_t length) {
  Tensor attend(DType::boolean, {std::ssize(windows), 1, length, length});
  bool* at = attend.data<bool>();
  for (const std::int64_t window : windows)
    for (std::int64_t t = 0; t < length; ++t)
      for (std::int64_t s = 0; s < length; ++s) *at++ = window == 0 || std::abs(s - t) <= window;
  return attend;
}

}  // namespace

void sentence_embedding(ConstTensorView hidden, ConstTensorView attend_keys, TensorView out) {
  constexpr const char* kOperation = "sentence_embedding";
  require(hidden && hidden.rank() >= 2, kOperation, ": hidden is ", hidden.shape(), "; it must be [*,T,E]");
  const int leading = hidden.rank() - 2;
  Shape pooled = hidden.shape();
  pooled.erase(leading);
  nn::require_shape(kOperation, {"out", out}, pooled);
  require(is_floating(hidden.dtype()) && is_floating(out.dtype()), kOperation, ": hidden is ", hidden.dtype(), " and out ", out.dtype(),
          "; both must be floating");
  if (attend_keys) nn::require_exactly(kOperation, {"attend_keys", attend_keys}, hidden.shape().first(leading + 1), DType::boolean);
  nn::require_no_overlap(kOperation, {"out", out}, {{"hidden", hidden}, {"attend_keys", attend_keys}});

  Shape one = hidden.shape();
  one[-2] = 1;
  Tensor mean(DType::f64, one);
  nn::reduce_positions(hidden, attend_keys, nn::Reduce::mean, mean, nullptr);
  double* const end = mean.data<double>() + mean.numel();
  for (double *row = mean.data<double>(), *next = row; row != end; row = next) {
    next = row + one[-1];
    const double norm = std::max(std::sqrt(std::inner_product(row, next, row, 0.0)), 1e-12);
    for (double* e = row; e != next; ++e) *e /= norm;
  }
  copy(mean.view().select(-2, 0), out);
}

TokenizedText SentenceModel::tokenize(std::string_view text, WhenTooLong when_too_long) const {
  return tokenizer.encode(text, limits(encoder, when_too_long));
}

TokenizedText SentenceModel::tokenize(std::string_view text, std::string_view pair, WhenTooLong when_too_long) const {
  // MPNet was trained with two separators between the texts of a pair. A tokenizer read from vocab.txt alone puts one separator there, as BERT does.
  if (encoder.config.family == "mpnet" && tokenizer.encode("", "").ids.size() != 4)
    fail(ErrorCode::unsupported, "text model: this tokenizer puts one separator between the texts of a pair, and models of the type mpnet need two; save it as tokenizer.json");
  return tokenizer.encode(text, pair, limits(encoder, when_too_long));
}

SentenceResult SentenceModel::run(std::string_view text, const SentenceOptions& options) const {
  return run(tokenize(text, options.when_too_long), options);
}

SentenceResult SentenceModel::run(std::string_view text, std::string_view pair, const SentenceOptions& options) const {
  return run(tokenize(text, pair, options.when_too_long), options);
}

SentenceResult SentenceModel::run(TokenizedText tokens, const SentenceOptions& options) const {
  const BertConfig& config = encoder.config;
  const DType results = accumulation_dtype(config.dtype);
  SentenceResult result;
  result.ids = int64_tensor(tokens.ids);
  const Tensor segments = int64_tensor(tokens.segments);
  result.tokens = std::move(tokens);
  const std::int64_t length = result.ids.numel();
  result.hidden = Tensor(config.dtype, {length, config.width});
  if (other_embedding.empty()) result.embedding = Tensor(results, {config.width});
  if (options.attentions) result.attentions = Tensor(results, {config.layers, config.heads, length, length});
  if (options.pooled != 0) result.pooled = Tensor(results, {config.layers, config.heads, options.pooled, options.pooled});
  if (options.head_vectors) {
    for (Tensor* heads : {&result.q, &result.k, &result.v}) *heads = Tensor(results, {config.layers, config.heads, length, config.width / config.heads});
  }
  if (options.head_vectors && config.rotary) {
    const BertEncoder::RotaryTables tables = encoder.rotary_tables(length);
    std::vector<nn::Rotary> layers;
    for (std::int64_t i = 0; i < config.layers; ++i) layers.push_back(encoder.attention_options(i, tables).rotary);
    result.rotations = layer_rotations(layers);
  }
  Tensor values;  // v, from which value_norms is computed, if the caller did not ask for v
  if (options.value_norms && !options.head_vectors) values = Tensor(results, {config.layers, config.heads, length, config.width / config.heads});
  Tensor& v = options.head_vectors ? result.v : values;
  if (options.all_hidden) result.all_hidden = Tensor(config.dtype, {config.layers + 1, length, config.width});
  if (options.head_vectors && encoder.relative_bias) result.bias = bias_of_pairs(encoder, length, results);
  if (options.head_vectors && std::ranges::any_of(config.window_reach, [](std::int64_t window) { return window > 0; })) result.attend = pairs_of_windows(config.window_reach, length);
  encoder.forward({.ids = result.ids, .segments = config.segments > 0 ? ConstTensorView(segments) : ConstTensorView()},
                  {.hidden = result.hidden, .all_hidden = result.all_hidden, .attentions = result.attentions, .pooled = result.pooled, .q = result.q, .k = result.k, .v = v},
                  {.backend = options.backend, .executor = options.executor, .workspace = options.workspace});
  if (result.embedding) sentence_embedding(result.hidden, {}, result.embedding);
  if (options.value_norms) result.value_norms = Tensor::copy_of(models::value_norms(encoder, v, {.executor = options.executor, .workspace = options.workspace}), results);
  return result;
}

Tensor SentenceModel::embed(std::span<const std::string> texts, const SentenceOptions& options) const {
  if (!other_embedding.empty()) fail(ErrorCode::unsupported, "SentenceModel.embed: ", other_embedding, "; polyhead computes embeddings by the mean over the tokens alone");
  const BertConfig& config = encoder.config;
  std::vector<TokenizedText> tokens;
  std::int64_t length = 0;
  for (const std::string& text : texts) {
    tokens.push_back(tokenize(text, options.when_too_long));
    length = std::max(length, static_cast<std::int64_t>(tokens.back().ids.size()));
  }
  const auto count = static_cast<std::int64_t>(texts.size());
  Tensor ids(DType::i64, {count, length}), attend_keys(DType::boolean, {count, length});  // attend_keys stays false for padding
  std::fill_n(ids.data<std::int64_t>(), ids.numel(), config.padding_token.value_or(0));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto& row = tokens[static_cast<std::size_t>(i)].ids;
    std::copy(row.begin(), row.end(), ids.data<std::int64_t>() + i * length);
    std::fill_n(attend_keys.data<bool>() + i * length, row.size(), true);
  }
  Tensor hidden(config.dtype, {count, length, config.width}), embeddings(accumulation_dtype(config.dtype), {count, config.width});
  encoder.forward({.ids = ids, .attend_keys = attend_keys}, {.hidden = hidden},
                  {.backend = options.backend, .executor = options.executor, .workspace = options.workspace});
  sentence_embedding(hidden, attend_keys, embeddings);
  return embeddings;
}

SentenceModel load_bert(const std::filesystem::path& directory) {
  SentenceModel model{.tokenizer = load_tokenizer(directory), .encoder = load_bert_encoder(directory), .other_embedding = read_sentence_modules(directory).other_embedding};
  const std::int64_t rows = model.encoder.config.vocabulary;
  if (const std::int64_t pieces = model.tokenizer.vocabulary_size(); pieces > rows)
    fail(ErrorCode::format, "load_bert: the tokenizer has ", pieces, " pieces, but config.json's vocab_size is ", rows);
  for (const AddedToken& token : model.tokenizer.added_tokens())
    if (token.id >= rows)
      fail(ErrorCode::format, "load_bert: the added token '", token.content, "' has id ", token.id, ", but config.json's vocab_size is ", rows);
  if (const std::int64_t limit = model.tokenizer.id_limit(); limit > rows)
    fail(ErrorCode::format, "load_bert: the tokenizer has a piece with id ", limit - 1, ", but config.json's vocab_size is ", rows);
  return model;
}

}  // namespace polyhead::models
