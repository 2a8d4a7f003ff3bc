#include "polyhead/models/text_classifier.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "core/lines.h"
#include "io/file_bytes.h"
#include "models/layer_maps.h"
#include "models/model_folder.h"
#include "models/values.h"
#include "nn/check.h"
#include "polyhead/nn/dropout.h"
#include "polyhead/nn/initialisation.h"
#include "polyhead/nn/seed.h"
#include "polyhead/sdpa.h"

namespace polyhead::models {
namespace {

constexpr std::string_view kTermsFile = "terms.txt";  // a term on each line, sorted
constexpr std::int64_t kScoreRow = 64;  // scores in a row of the table; a quantised file has one scale for each row
constexpr double kEmbeddingDeviation = 0.1;
enum Part : std::uint64_t { kLayers, kEmbedded, kRead };  // the places at which a pass applies dropout

void check(const TextClassifierConfig& c) {
  for (const auto& [name, value] : {std::pair("vocabulary", c.vocabulary), {"longest", c.longest}, {"model_width", c.model_width}, {"hidden_width", c.hidden_width}, {"layers", c.layers}, {"heads", c.heads}})
    require(value >= 1, "TextClassifier: ", name, " is ", value, "; it must be at least 1");
  require(c.model_width % c.heads == 0, "TextClassifier: ", c.heads, " heads do not divide a width of ", c.model_width);
  require(c.terms >= 0, "TextClassifier: terms is ", c.terms, "; it must be at least 0");
  require(c.labels.empty() || c.outputs() > 1, "TextClassifier: there is one class, '", c.labels, "'; a classifier needs two");
  require(c.dtype == DType::f32 || c.dtype == DType::f64, "TextClassifier: dtype is ", c.dtype, "; it must be float32 or float64");
}

// Calls f(text, term, share) for each known term of each text of a batch; share is the text's element of Batch::shares.
template <class F>
void for_each_term(const TextClassifier::Batch& batch, const F& f) {
  const std::int64_t width = batch.terms ? batch.terms.extent(1) : 0;
  for (std::int64_t b = 0; b < (batch.terms ? batch.terms.extent(0) : 0); ++b)
    for (std::int64_t s = 0; s < width; ++s)
      if (const std::int64_t term = batch.terms.data<std::int64_t>()[b * width + s]; term >= 0) f(b, term, batch.shares.data<double>()[b]);
}

void check_batch(const TextClassifierConfig& config, const TextClassifier::Batch& batch) {
  constexpr const char* kOperation = "TextClassifier.forward";
  require(batch.ids.rank() == 2 && batch.ids.dtype() == DType::i64 && batch.ids.is_contiguous(), kOperation, ": ids must be int64 [B,T], contiguous");
  const std::int64_t texts = batch.ids.extent(0), length = batch.ids.extent(1);
  require(length >= 1 && length <= config.longest, kOperation, ": texts have ", length, " tokens; the model takes 1 to ", config.longest);
  nn::require_exactly(kOperation, {"lengths", batch.lengths}, {texts}, DType::i64);
  require(batch.lengths.is_contiguous(), kOperation, ": lengths must be contiguous");
  for (const std::int64_t own : std::span(batch.lengths.data<std::int64_t>(), static_cast<std::size_t>(texts)))
    require(own >= 1 && own <= length, kOperation, ": a length is ", own, "; it must be in [1,", length, "]");
  for (const std::int64_t id : std::span(batch.ids.data<std::int64_t>(), static_cast<std::size_t>(texts * length)))
    require(id >= 0 && id < config.vocabulary, kOperation, ": a token is ", id, "; the vocabulary has ", config.vocabulary);
  if (batch.segments)
    nn::require_exactly(kOperation, {"segments", batch.segments}, {texts, length, batch.segments.rank() == 3 ? batch.segments.extent(2) : 0}, config.dtype);
  if (!batch.terms) return;
  nn::require_exactly(kOperation, {"terms", batch.terms}, {texts, batch.terms.rank() == 2 ? batch.terms.extent(1) : 0}, DType::i64);
  nn::require_exactly(kOperation, {"shares", batch.shares}, {texts}, DType::f64);
  require(batch.terms.is_contiguous() && batch.shares.is_contiguous(), kOperation, ": terms and shares must be contiguous");
  for_each_term(batch, [&](std::int64_t, std::int64_t term, double) { require(term < config.terms, kOperation, ": a term is ", term, "; the model has ", config.terms); });
}

std::vector<std::string> read_terms(const std::filesystem::path& path, std::int64_t count) {
  std::vector<std::string> terms;
  const io::FileBytes file = io::read_file(path);
  std::string_view text = file.text();
  while (const auto line = take_line(text)) {
    terms.emplace_back(*line);
    if (terms.size() > 1 && terms[terms.size() - 2] >= terms.back()) fail(ErrorCode::format, path.string(), ": line ", terms.size(), " does not come after the line before it; terms are sorted by their bytes");
  }
  if (std::ssize(terms) != count) fail(ErrorCode::format, path.string(), " has ", terms.size(), " terms; config.json says ", count);
  return terms;
}

}  // namespace

std::vector<std::string> TextClassifierConfig::label_list() const {
  std::vector<std::string> list;
  for (std::size_t first = 0; !labels.empty() && first <= labels.size();) {
    const std::size_t last = std::min(labels.find('\t', first), labels.size());
    list.push_back(labels.substr(first, last - first));
    first = last + 1;
  }
  return list;
}

std::int64_t TextClassifierConfig::outputs() const { return labels.empty() ? 1 : std::ranges::count(labels, '\t') + 1; }

ConstTensorView TextClassifier::Saved::masses() const {
  const std::int64_t width = keys.extent(3);
  return ConstTensorView(pooled).select(2, 0).slice(2, width, pooled.extent(3));
}

TextClassifier::TextClassifier(const TextClassifierConfig& given) : config(given) {
  check(config);
  const std::int64_t width = config.model_width;
  const auto seed = [&](std::uint64_t part) { return nn::derive_seed(config.seed, part); };
  const auto linear = [&](std::int64_t outputs, std::uint64_t part) { return nn::Linear({.in_width = width, .out_width = outputs, .dtype = config.dtype, .seed = seed(part)}); };
  words = nn::Embedding(Tensor(config.dtype, {config.vocabulary, width}));
  positions = nn::Embedding(Tensor(config.dtype, {config.longest, width}));
  nn::initialise_normal({{"words", &words.weight}, {"positions", &positions.weight}}, {.deviation = kEmbeddingDeviation, .seed = seed(0)});
  encoder = nn::Encoder({.width = width, .heads = config.heads, .hidden_width = config.hidden_width, .norm_position = nn::NormPosition::pre, .dropout = config.dropout, .dtype = config.dtype, .seed = seed(1)}, config.layers);
  pooling.query = Tensor(config.dtype, {config.heads, width / config.heads});
  nn::initialise_normal({{"query", &pooling.query}}, {.deviation = 0.5, .seed = seed(2)});
  pooling.key = linear(width, 3), pooling.value = linear(width, 4), output = linear(config.outputs(), 5);
  if (config.terms > 0) scores = Tensor(config.dtype, {(config.terms + kScoreRow - 1) / kScoreRow, kScoreRow, config.outputs()});
}

void TextClassifier::forward(const Batch& batch, TensorView answers, Saved& saved, const nn::AttentionOptions& options) const {
  check_batch(config, batch);
  const std::int64_t texts = batch.ids.extent(0), length = batch.ids.extent(1), width = config.model_width, heads = config.heads, outputs = config.outputs();
  const std::int64_t head_width = width / heads, segments = batch.segments ? batch.segments.extent(2) : 0;
  nn::require_exactly("TextClassifier.forward", {"answers", answers}, {texts, outputs}, config.dtype);
  const bool training = options.mode == nn::Mode::training && config.dropout > 0;
  require(!training || options.dropout_seed.has_value(), "TextClassifier.forward: training with dropout needs a dropout_seed");
  saved = {.batch = batch, .dropped = training ? config.dropout : 0, .seed = options.dropout_seed.value_or(0)};
  const nn::RunOptions run{options.executor, options.workspace};
  const auto tensor = [&](const Shape& shape) { return uninitialised(config.dtype, shape, options.workspace); };

  saved.x = tensor({texts, length, width});
  const auto places = positions_of(length);
  words.forward(batch.ids, saved.x, {.executor = options.executor});
  positions.forward(ConstTensorView(places.data(), {length}).expand({texts, length}), saved.x, {nn::Write::add, options.executor});
  if (training) nn::dropout(saved.x, saved.x, saved.dropped, nn::derive_seed(saved.seed, kEmbedded), options.executor);
  saved.y = tensor(saved.x.shape());
  encoder.forward(saved.x, saved.y, {.mask = {.key_lengths = batch.lengths}, .mode = options.mode, .dropout_seed = nn::derive_seed(saved.seed, kLayers), .executor = options.executor, .workspace = options.workspace}, &saved.encoder);

  // The segments of the tokens are appended to the values as columns, so the pooling's output also has the sum of attention weights on each segment.
  saved.keys = tensor({texts, length, heads, head_width});
  Tensor value = tensor(saved.x.shape());
  pooling.key.forward(saved.y, saved.keys.view().reshape(saved.x.shape()), run);
  pooling.value.forward(saved.y, value, run);
  saved.values = tensor({texts, length, heads, head_width + segments});
  copy(value.view().unflatten(2, {heads, head_width}), saved.values.view().slice(3, 0, head_width));
  if (segments > 0) copy(batch.segments.unsqueeze(2).expand({texts, length, heads, segments}), saved.values.view().slice(3, head_width, head_width + segments));
  saved.p = tensor({texts, heads, 1, length}), saved.pooled = tensor({texts, heads, 1, head_width + segments}), saved.lse = tensor({texts, heads, 1});
  sdpa_forward({.q = pooling.query.view().unsqueeze(0).unsqueeze(2).expand({texts, heads, 1, head_width}), .k = saved.keys.view().transpose(1, 2), .v = saved.values.view().transpose(1, 2), .out = saved.pooled, .lse = saved.lse, .attention_weights = saved.p},
               {.mask = {.key_lengths = batch.lengths}, .executor = options.executor, .workspace = options.workspace});
  saved.read = tensor({texts, width});
  copy(saved.pooled.view().select(2, 0).slice(2, 0, head_width), saved.read.view().unflatten(1, {heads, head_width}));
  if (training) nn::dropout(saved.read, saved.read, saved.dropped, nn::derive_seed(saved.seed, kRead), options.executor);
  Tensor result = tensor(answers.shape());
  output.forward(saved.read, result, run);
  with_type(config.dtype, [&]<class T>(T) {
    T* const to = result.data<T>();
    for_each_term(batch, [&](std::int64_t text, std::int64_t term, double share) {
      for (std::int64_t c = 0; c < outputs; ++c) to[text * outputs + c] += static_cast<T>(share) * scores.data<T>()[term * outputs + c];
    });
  });
  copy(result, answers);
}

void TextClassifier::backward(const Saved& saved, ConstTensorView d_answers, TextClassifier& gradients, ConstTensorView d_masses, const nn::RunOptions& options) const {
  constexpr const char* kOperation = "TextClassifier.backward";
  require(static_cast<bool>(saved.pooled), kOperation, ": saved holds no forward pass");
  const Batch& batch = saved.batch;
  const std::int64_t texts = batch.ids.extent(0), length = batch.ids.extent(1), width = config.model_width, heads = config.heads, outputs = config.outputs();
  const std::int64_t head_width = width / heads, value_width = saved.pooled.extent(3);
  nn::require_exactly(kOperation, {"d_answers", d_answers}, {texts, outputs}, config.dtype);
  if (d_masses) nn::require_exactly(kOperation, {"d_masses", d_masses}, {texts, heads, value_width - head_width}, config.dtype);
  const auto tensor = [&](const Shape& shape) { return uninitialised(config.dtype, shape, options.workspace); };

  const Tensor d_all = Tensor::copy_of(d_answers);
  if (scores) {
    fill(gradients.scores, 0);
    with_type(config.dtype, [&]<class T>(T) {
      T* const table = gradients.scores.template data<T>();
      const T* const from = d_all.data<T>();
      for_each_term(batch, [&](std::int64_t text, std::int64_t term, double share) {
        for (std::int64_t c = 0; c < outputs; ++c) table[term * outputs + c] += static_cast<T>(share) * from[text * outputs + c];
      });
    });
  }
  Tensor d_read = tensor({texts, width});
  output.backward(saved.read, d_answers, {.x = d_read, .parameters = &gradients.output}, options);
  if (saved.dropped > 0) nn::dropout(d_read, d_read, saved.dropped, nn::derive_seed(saved.seed, kRead), options.executor);
  Tensor d_pooled = tensor(saved.pooled.shape());
  fill(d_pooled, 0);
  copy(d_read.view().unflatten(1, {heads, head_width}), d_pooled.view().select(2, 0).slice(2, 0, head_width));
  if (d_masses) copy(d_masses, d_pooled.view().select(2, 0).slice(2, head_width, value_width));

  Tensor d_query = tensor({texts, heads, 1, head_width}), d_keys = tensor(saved.keys.shape()), d_values = tensor(saved.values.shape());
  sdpa_backward({.q = pooling.query.view().unsqueeze(0).unsqueeze(2).expand(d_query.shape()), .k = saved.keys.view().transpose(1, 2), .v = saved.values.view().transpose(1, 2), .out = saved.pooled, .lse = saved.lse, .d_out = d_pooled,
                 .d_q = d_query, .d_k = d_keys.view().transpose(1, 2), .d_v = d_values.view().transpose(1, 2)},
                {.mask = {.key_lengths = batch.lengths}, .executor = options.executor, .workspace = options.workspace});
  with_type(config.dtype, [&]<class T>(T) {
    const std::int64_t count = heads * head_width;
    T* const to = gradients.pooling.query.template data<T>();
    std::fill_n(to, count, T{0});
    for (std::int64_t i = 0; i < texts * count; ++i) to[i % count] += d_query.data<T>()[i];
  });
  Tensor d_value = tensor(saved.x.shape()), d_y = tensor(saved.x.shape()), d_x = tensor(saved.x.shape());
  copy(d_values.view().slice(3, 0, head_width), d_value.view().unflatten(2, {heads, head_width}));
  pooling.value.backward(saved.y, d_value, {.x = d_y, .parameters = &gradients.pooling.value}, options);
  pooling.key.backward(saved.y, d_keys.view().reshape(saved.x.shape()), {.x = d_y, .parameters = &gradients.pooling.key, .x_write = nn::Write::add}, options);
  encoder.backward(saved.encoder, d_y, {.x = d_x, .parameters = &gradients.encoder}, options);
  if (saved.dropped > 0) nn::dropout(d_x, d_x, saved.dropped, nn::derive_seed(saved.seed, kEmbedded), options.executor);
  const auto places = positions_of(length);
  positions.backward(ConstTensorView(places.data(), {length}).expand({texts, length}), d_x, {.parameters = &gradients.positions}, options);
  words.backward(batch.ids, d_x, {.parameters = &gradients.words}, options);
}

TextInput input_of(const TextModel& model, std::string_view text) {
  TextInput input{.ids = model.tokenizer.encode(text).ids};
  if (model.terms.empty()) return input;
  const TextTerms found = terms_of(text);
  input.share = found.share;
  for (const std::string& term : found.terms)
    if (const auto at = std::ranges::lower_bound(model.terms, term); at != model.terms.end() && *at == term) input.terms.push_back(at - model.terms.begin());
  return input;
}

TextInputs::TextInputs(std::span<const TextInput> inputs) {
  std::size_t longest = 0, most_terms = 0;
  for (const TextInput& input : inputs) longest = std::max(longest, input.ids.size()), most_terms = std::max(most_terms, input.terms.size());
  for (const TextInput& input : inputs) {
    lengths.push_back(std::ssize(input.ids)), shares.push_back(input.share);
    ids.insert(ids.end(), input.ids.begin(), input.ids.end()), terms.insert(terms.end(), input.terms.begin(), input.terms.end());
    ids.resize(lengths.size() * longest, 0), terms.resize(lengths.size() * most_terms, -1);
  }
}

TextClassifier::Batch TextInputs::batch() const {
  const std::int64_t texts = std::ssize(lengths);
  TextClassifier::Batch batch{.ids = ConstTensorView(ids.data(), {texts, std::ssize(ids) / texts}), .lengths = ConstTensorView(lengths.data(), {texts})};
  if (!terms.empty()) batch.terms = ConstTensorView(terms.data(), {texts, std::ssize(terms) / texts}), batch.shares = ConstTensorView(shares.data(), {texts});
  return batch;
}

ClassifiedText classify(const TextModel& model, std::string_view text) {
  const TextClassifier& classifier = model.classifier;
  const TextInput input = input_of(model, text);
  ClassifiedText result{.text = model.tokenizer.encode(text), .known_terms = std::ssize(input.terms)};
  const std::int64_t length = std::ssize(result.text.ids);
  require(length >= 1, "classify: the text has no tokens");
  require(length <= classifier.config.longest, "classify: the text has ", length, " tokens; the model takes at most ", classifier.config.longest);
  Tensor answers(DType::f32, {1, classifier.config.outputs()});
  TextClassifier::Saved saved;
  const TextInputs inputs({&input, 1});
  classifier.forward(inputs.batch(), answers, saved);
  result.attentions = layer_maps(saved.encoder.layers, &nn::EncoderLayer::Saved::attention);
  result.pooling = Tensor::copy_of(saved.p.view().select(0, 0).select(1, 0));
  result.vectors = layer_vectors(saved.encoder.layers, &nn::EncoderLayer::Saved::attention);
  const auto heads_first = [](const Tensor& tensor) { return Tensor::copy_of(tensor.view().transpose(1, 2)); };
  result.pooling_vectors = {.q = Tensor::copy_of(classifier.pooling.query.view().unsqueeze(0).unsqueeze(2)), .k = heads_first(saved.keys), .v = heads_first(saved.values)};
  const std::span<const float> given(answers.data<float>(), static_cast<std::size_t>(answers.numel()));
  if (classifier.config.labels.empty()) {
    result.rating = given[0];
    const std::int64_t heads = classifier.config.heads, head_width = classifier.config.model_width / heads;
    const float *const read = saved.read.data<float>(), *const weight = classifier.output.weight.data<float>();
    result.score_part = result.rating - static_cast<double>(classifier.output.bias.data<float>()[0]);
    for (std::int64_t n = 0; n < heads; ++n) {
      result.head_parts.push_back(std::inner_product(read + n * head_width, read + (n + 1) * head_width, weight + n * head_width, 0.0));
      result.score_part -= result.head_parts.back();
    }
    return result;
  }
  result.probabilities.assign(given.begin(), given.end());
  softmax(result.probabilities);
  return result;
}

Tensor classify_all(const TextClassifier& classifier, std::span<const TextInput> texts) {
  constexpr std::size_t kBatch = 64;
  Tensor all(classifier.config.dtype, {std::ssize(texts), classifier.config.outputs()});
  const Workspace workspace;
  TextClassifier::Saved saved;
  for (std::size_t first = 0; first < texts.size(); first += kBatch) {
    const std::span<const TextInput> some = texts.subspan(first, std::min(kBatch, texts.size() - first));
    const TextInputs inputs(some);
    classifier.forward(inputs.batch(), all.view().slice(0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(first + some.size())), saved, {.workspace = &workspace});
  }
  return all;
}

void save_text_model(const TextModel& model, const std::filesystem::path& folder) {
  make_folder(folder);
  model.tokenizer.save(folder);
  std::string terms;
  for (const std::string& term : model.terms) terms += term + '\n';
  io::write_file(folder / kTermsFile, terms);
  write_model(folder, model.classifier.config, model.classifier);
}

TextModel load_text_model(const std::filesystem::path& folder) {
  auto config = read_model_config<TextClassifierConfig>(folder);
  std::vector<std::string> terms = read_terms(folder / kTermsFile, config.terms);  // checks the number of terms before a table for as many scores is allocated
  TextModel model{load_byte_pair_tokenizer(folder), TextClassifier(config), std::move(terms)};
  require(model.tokenizer.vocabulary_size() == config.vocabulary, folder.string(), ": the tokenizer has ", model.tokenizer.vocabulary_size(), " tokens; config.json says ", config.vocabulary);
  read_model_parameters(model.classifier, folder);
  return model;
}

}  // namespace polyhead::models
