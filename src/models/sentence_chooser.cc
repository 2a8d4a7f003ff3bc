#include "polyhead/models/sentence_chooser.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "core/hash.h"
#include "models/layer_maps.h"
#include "models/model_folder.h"
#include "models/values.h"
#include "models/tokenizer/normalizer.h"
#include "models/tokenizer/pre_tokenizer.h"
#include "models/tokenizer/utf8.h"
#include "models/unicode.h"
#include "nn/check.h"
#include "polyhead/nn/dropout.h"
#include "polyhead/nn/initialisation.h"
#include "polyhead/nn/seed.h"

namespace polyhead::models {
namespace {

// Eight counts describe a sentence. The table of learned vectors `places` has `rows` rows for each count; the value c of a count uses row min(c / unit, rows -
// 1).
struct Rows {
  std::int64_t rows, unit = 1;
};
constexpr std::array<Rows, 8> kPlaces{{
    {12},     // number of sentences before this sentence
    {12},     // number of sentences after this sentence
    {24, 3},  // number of words of this sentence
    {16},     // number of stems of this sentence that other sentences have too
    {16, 2},  // sum over these stems of the number of other sentences with the stem
    {12},     // number of sentences of the text
    {6},      // 0 if this sentence lacks "we", else 1 + number of earlier sentences with "we": authors use "we" to say what they did
    {8},      // number of sentences of the text with "we"
}};
enum Part : std::uint64_t { kLayers, kEmbedded };  // the places at which a pass applies dropout

void check(const SentenceChooserConfig& c) {
  for (const auto& [name, value] : {std::pair("slots", c.slots), {"model_width", c.model_width}, {"hidden_width", c.hidden_width}, {"layers", c.layers}, {"heads", c.heads}})
    require(value >= 1, "SentenceChooser: ", name, " is ", value, "; it must be at least 1");
  require(c.dtype == DType::f32 || c.dtype == DType::f64, "SentenceChooser: dtype is ", c.dtype, "; it must be float32 or float64");
}

// Returns the lowercase words and the single punctuation characters of a sentence.
std::vector<std::string> words_of(std::string_view sentence) {
  const Words split = split_words(normalize(align_utf8(sentence).text, {BertNormalizer{}}), bert_words());
  std::vector<std::string> words;
  for (const ByteSpan& word : split.words) words.push_back(split.text.bytes.substr(word.first, word.last - word.first));
  return words;
}

// Returns the first 6 bytes of each word of a sentence. Words of less than 5 bytes, such as "the" and "with", are left out. These beginnings measure how much
// two sentences overlap.
std::set<std::string> stems_of(const std::vector<std::string>& words) {
  std::set<std::string> stems;
  for (const std::string& word : words)
    if (word.size() >= 5) stems.insert(word.substr(0, 6));
  return stems;
}

// Calls f(row of x, sentence) for each sentence of each text.
template <class F>
void for_each_sentence(std::span<const SentenceChooser::Text> texts, std::int64_t longest, const F& f) {
  for (std::size_t b = 0; b < texts.size(); ++b)
    for (std::size_t s = 0; s < texts[b].size(); ++s) f(static_cast<std::int64_t>(b) * longest + static_cast<std::int64_t>(s), texts[b][s]);
}

double share(const SentenceTerms& sentence) { return 1 / std::sqrt(static_cast<double>(sentence.slots.size())); }

bool is_one_of(std::u32string_view set, char32_t code) { return set.find(code) != set.npos; }

// begins_sentence() and ends_sentence() look at one word, the text between two white spaces. They ignore quotation marks and brackets around it.
bool begins_sentence(std::span<const Char> word) {
  while (word.size() > 1 && is_one_of(U"\"'([\u201C\u2018", word[0].code)) word = word.subspan(1);
  std::vector<Char> lower;
  append_lowercase(lower, word[0]);
  return (word[0].code >= '0' && word[0].code <= '9') || lower[0].code != word[0].code;
}
bool ends_sentence(std::span<const Char> word) {
  static constexpr std::array<std::string_view, 14> kAbbreviations{"e.g.", "i.e.", "etc.", "cf.", "al.", "vs.", "fig.", "eq.", "sec.", "no.", "dr.", "mr.", "mrs.", "prof."};
  while (word.size() > 1 && is_one_of(U"\"')]\u201D\u2019", word.back().code)) word = word.first(word.size() - 1);
  if (!is_one_of(U".!?", word.back().code)) return false;
  while (is_one_of(U"\"'([\u201C\u2018", word[0].code)) word = word.subspan(1);
  std::vector<Char> lower;
  for (const Char& c : word) append_lowercase(lower, c);
  std::string text;
  for (const Char& c : lower) append_char(text, c.code);
  const bool initial = lower.size() == 2 && lower[1].code == '.' && is_word_character(lower[0].code);
  return !initial && std::ranges::find(kAbbreviations, text) == kAbbreviations.end();
}

}  // namespace

SentenceChooser::SentenceChooser(const SentenceChooserConfig& given) : config(given) {
  check(config);
  const std::int64_t width = config.model_width;
  terms = nn::Embedding(Tensor(config.dtype, {config.slots, width}));
  std::int64_t rows = 0;
  for (const Rows& count : kPlaces) rows += count.rows;
  places = nn::Embedding(Tensor(config.dtype, {rows, width}));
  // Initial values are near 0, so that terms that do not occur in training have little effect.
  nn::initialise_normal({{"terms", &terms.weight}, {"places", &places.weight}}, {.deviation = 0.01, .seed = nn::derive_seed(config.seed, 0)});
  encoder = nn::Encoder({.width = width, .heads = config.heads, .hidden_width = config.hidden_width, .norm_position = nn::NormPosition::pre, .dropout = config.dropout, .dtype = config.dtype, .seed = nn::derive_seed(config.seed, 1)}, config.layers);
  output = nn::Linear({.in_width = width, .out_width = 1, .dtype = config.dtype, .seed = nn::derive_seed(config.seed, 2)});
}

SentenceChooser::Text SentenceChooser::read(std::span<const std::string> sentences) const {
  require(!sentences.empty(), "SentenceChooser.read: there is no sentence");
  std::vector<std::vector<std::string>> all_words;
  std::map<std::string, std::int64_t> having;  // for each stem the number of sentences that have it
  std::int64_t with_we = 0, with_we_before = 0;
  const auto has_we = [](const std::vector<std::string>& words) { return std::ranges::find(words, "we") != words.end(); };
  for (const std::string& sentence : sentences) {
    all_words.push_back(words_of(sentence));
    with_we += has_we(all_words.back());
    for (const std::string& stem : stems_of(all_words.back())) ++having[stem];
  }
  Text text;
  for (const std::vector<std::string>& words : all_words) {
    std::int64_t repeated = 0, repetitions = 0;
    for (const std::string& stem : stems_of(words))
      if (const std::int64_t others = having[stem] - 1; others > 0) ++repeated, repetitions += others;
    const std::int64_t before = std::ssize(text), count = std::ssize(sentences);
    SentenceTerms sentence;
    std::int64_t first = 0;
    const std::int64_t we = has_we(words) ? 1 + with_we_before++ : 0;
    for (std::size_t k = 0; const std::int64_t value : {before, count - 1 - before, std::ssize(words), repeated, repetitions, count, we, with_we}) {
      sentence.places.push_back(first + std::min(value / kPlaces[k].unit, kPlaces[k].rows - 1));
      first += kPlaces[k++].rows;
    }
    const auto add = [&](std::string_view kind, std::string_view term) {
      sentence.slots.push_back(static_cast<std::int64_t>(nn::derive_seed(fnv1a(term, fnv1a(kind)), 0) % static_cast<std::uint64_t>(config.slots)));
    };
    if (words.empty()) add("", "");
    for (std::size_t k = 0; k < words.size(); ++k) {
      add("", words[k]);
      add("pair ", cat(k > 0 ? words[k - 1] : "", ' ', words[k]));
    }
    const auto add_starts = [&](std::string_view kind, std::int64_t of, std::size_t longest) {
      if (of < 0 || of >= count) return;
      const std::vector<std::string>& own = all_words[static_cast<std::size_t>(of)];
      std::string start;
      for (std::size_t k = 0; k < std::min(own.size(), longest); ++k) add(kind, start += own[k] + ' ');
    };
    add_starts("start ", before, 3);
    add_starts("start before ", before - 1, 2);
    add_starts("start after ", before + 1, 2);
    std::ranges::sort(sentence.slots);
    sentence.slots.erase(std::unique(sentence.slots.begin(), sentence.slots.end()), sentence.slots.end());
    text.push_back(std::move(sentence));
  }
  return text;
}

void SentenceChooser::forward(std::span<const Text> texts, TensorView scores, Saved& saved, const nn::AttentionOptions& options) const {
  constexpr const char* kOperation = "SentenceChooser.forward";
  std::int64_t longest = 0;
  for (const Text& text : texts) longest = std::max(longest, std::ssize(text));
  nn::require_exactly(kOperation, {"scores", scores}, {std::ssize(texts), longest}, config.dtype);
  for (std::size_t b = 0; b < texts.size(); ++b) {
    require(!texts[b].empty(), kOperation, ": text ", b, " has no sentence");
    for (const SentenceTerms& sentence : texts[b]) {
      require(!sentence.slots.empty(), kOperation, ": a sentence of text ", b, " has no term");
      for (const auto& [ids, count, what] : {std::tuple(&sentence.slots, config.slots, "slot"), {&sentence.places, places.count(), "place"}})
        for (const std::int64_t id : *ids) require(id >= 0 && id < count, kOperation, ": a ", what, " is ", id, "; the model has ", count);
    }
  }
  const bool training = options.mode == nn::Mode::training && config.dropout > 0;
  require(!training || options.dropout_seed.has_value(), kOperation, ": training with dropout needs a dropout_seed");
  const std::int64_t width = config.model_width;
  const Shape shape{std::ssize(texts), longest, width};
  saved = {.texts = texts, .lengths{DType::i64, {shape[0]}}, .x = uninitialised(config.dtype, shape, options.workspace), .y = uninitialised(config.dtype, shape, options.workspace), .dropout = training ? config.dropout : 0, .seed = options.dropout_seed.value_or(0)};
  for (std::int64_t b = 0; b < shape[0]; ++b) saved.lengths.data<std::int64_t>()[b] = std::ssize(texts[static_cast<std::size_t>(b)]);
  fill(saved.x, 0);
  with_type(config.dtype, [&]<class T>(T) {
    for_each_sentence(texts, longest, [&](std::int64_t row, const SentenceTerms& sentence) {
      T* const to = saved.x.data<T>() + row * width;
      const auto add = [&](const nn::Embedding& table, std::int64_t id, T factor) {
        const T* const from = table.weight.data<T>() + id * width;
        for (std::int64_t e = 0; e < width; ++e) to[e] += factor * from[e];
      };
      for (const std::int64_t id : sentence.slots) add(terms, id, static_cast<T>(share(sentence)));
      for (const std::int64_t id : sentence.places) add(places, id, 1);
    });
  });
  if (training) nn::dropout(saved.x, saved.x, saved.dropout, nn::derive_seed(saved.seed, kEmbedded), options.executor);
  encoder.forward(saved.x, saved.y, {.mask = {.key_lengths = saved.lengths}, .mode = options.mode, .dropout_seed = nn::derive_seed(saved.seed, kLayers), .executor = options.executor, .workspace = options.workspace}, &saved.encoder);
  output.forward(saved.y, scores.unsqueeze(2), {options.executor, options.workspace});
}

void SentenceChooser::backward(const Saved& saved, ConstTensorView d_scores, SentenceChooser& gradients, const nn::RunOptions& options, std::span<const nn::AttentionWeightsGradient> attention_weights) const {
  constexpr const char* kOperation = "SentenceChooser.backward";
  require(static_cast<bool>(saved.y), kOperation, ": saved holds no forward pass");
  const std::int64_t width = config.model_width, longest = saved.y.extent(1);
  nn::require_exactly(kOperation, {"d_scores", d_scores}, {saved.y.extent(0), longest}, config.dtype);
  Tensor d_y = uninitialised(config.dtype, saved.y.shape(), options.workspace), d_x = uninitialised(config.dtype, saved.y.shape(), options.workspace);
  output.backward(saved.y, d_scores.unsqueeze(2), {.x = d_y, .parameters = &gradients.output}, options);
  encoder.backward(saved.encoder, d_y, {.x = d_x, .parameters = &gradients.encoder, .attention_weights = attention_weights}, options);
  if (saved.dropout > 0) nn::dropout(d_x, d_x, saved.dropout, nn::derive_seed(saved.seed, kEmbedded), options.executor);
  for (nn::Embedding* table : {&gradients.terms, &gradients.places}) fill(table->weight, 0);
  with_type(config.dtype, [&]<class T>(T) {
    for_each_sentence(saved.texts, longest, [&](std::int64_t row, const SentenceTerms& sentence) {
      const T* const from = d_x.data<T>() + row * width;
      const auto add = [&](nn::Embedding& table, std::int64_t id, T factor) {
        T* const to = table.weight.data<T>() + id * width;
        for (std::int64_t e = 0; e < width; ++e) to[e] += factor * from[e];
      };
      for (const std::int64_t id : sentence.slots) add(gradients.terms, id, static_cast<T>(share(sentence)));
      for (const std::int64_t id : sentence.places) add(gradients.places, id, 1);
    });
  });
}

namespace {

ChosenSentence choose(const SentenceChooser& model, std::span<const std::string> sentences, SentenceChooser::Saved& saved) {
  const SentenceChooser::Text text = model.read(sentences);
  Tensor scores(model.config.dtype, {1, std::ssize(text)});
  model.forward({&text, 1}, scores, saved);
  ChosenSentence result;
  with_type(model.config.dtype, [&]<class T>(T) { result.scores.assign(scores.data<T>(), scores.data<T>() + scores.numel()); });
  result.best = std::ranges::max_element(result.scores) - result.scores.begin();
  softmax(result.scores);
  return result;
}

}  // namespace

ChosenSentence choose(const SentenceChooser& model, std::span<const std::string> sentences) {
  SentenceChooser::Saved saved;
  ChosenSentence result = choose(model, sentences, saved);
  result.attentions = layer_maps(saved.encoder.layers, &nn::EncoderLayer::Saved::attention);
  return result;
}

std::int64_t best_sentence(const SentenceChooser& model, std::span<const std::string> sentences) {
  SentenceChooser::Saved saved;
  return choose(model, sentences, saved).best;
}

std::vector<std::string> split_sentences(std::string_view text) {
  const std::vector<Char> chars = decode_utf8(text).chars;
  std::vector<std::span<const Char>> words;
  for (std::size_t i = 0; i < chars.size(); ++i) {
    if (is_white_space(chars[i].code)) continue;
    const std::size_t first = i;
    while (i < chars.size() && !is_white_space(chars[i].code)) ++i;
    words.emplace_back(chars.begin() + static_cast<std::ptrdiff_t>(first), chars.begin() + static_cast<std::ptrdiff_t>(i));
  }
  std::vector<std::string> sentences;
  for (std::size_t first = 0, i = 0; i < words.size(); ++i) {
    if (i + 1 < words.size() && !(ends_sentence(words[i]) && begins_sentence(words[i + 1]))) continue;
    const std::size_t start = words[first].front().span.first;
    sentences.emplace_back(text.substr(start, words[i].back().span.last - start));
    first = i + 1;
  }
  return sentences;
}

void save_sentence_chooser(const SentenceChooser& model, const std::filesystem::path& folder) { write_model(folder, model.config, model); }

SentenceChooser load_sentence_chooser(const std::filesystem::path& folder) {
  return read_model<SentenceChooser, SentenceChooserConfig>(folder);
}

}  // namespace polyhead::models
