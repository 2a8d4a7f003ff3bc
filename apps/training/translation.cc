#include "training/translation.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "core/ascii.h"
#include "core/join.h"
#include "core/text.h"
#include "polyhead/maps.h"
#include "polyhead/nn/cross_entropy.h"
#include "polyhead/nn/seed.h"
#include "training/bleu.h"
#include "training/figures.h"
#include "training/grammar.h"
#include "training/order.h"
#include "training/statistics.h"

namespace polyhead::training {
namespace {

using models::BytePairText;
using models::BytePairTokenizer;
using models::Translator;

enum Part : std::uint64_t { kModel, kOrder, kSteps, kSentences, kValidation };  // derive_seed() makes a separate seed for each part
constexpr double kValidationShareOfPairs = 0.05;

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), lower_ascii);
  return text;
}
std::vector<std::string> lower(std::vector<std::string> words) {
  for (std::string& word : words) word = lower(std::move(word));
  return words;
}

// The words of a text in the form that the alignment models use: in small letters.
std::vector<std::string> words_of(const BytePairText& tokens, std::string_view text) { return lower(tokens.words_in(text)); }

// shares[j] is the guide for target word j: a share for each source word, then the share of the end token.
Example make_example(const BytePairText& source, const BytePairText& target, std::span<const std::int64_t> source_words, std::span<const std::int64_t> target_words,
                     const std::vector<std::vector<double>>& shares) {
  Example example{source.ids, target.ids, {}};
  for (std::int64_t t = 0; t < std::ssize(target_words); ++t) {
    const std::int64_t word = target_words[static_cast<std::size_t>(t)];
    if (word < 0) continue;
    const std::vector<double>& row = shares[static_cast<std::size_t>(word)];
    for (std::int64_t s = 0; s < std::ssize(source_words); ++s) {
      const std::int64_t from = source_words[static_cast<std::size_t>(s)];
      if (from >= 0 && row[static_cast<std::size_t>(from)] > 0.01)
        example.guides.push_back({t, s, row[static_cast<std::size_t>(from)] / static_cast<double>(std::ranges::count(source_words, from))});
    }
    if (row.back() > 0.01) example.guides.push_back({t, std::ssize(source_words), row.back()});
  }
  return example;
}

Example grammar_example(const BytePairTokenizer& tokenizer, const AlignedPair& pair) {
  const AlignedTokens tokens = grammar_tokens(tokenizer, pair);
  std::vector<std::vector<double>> shares(pair.target.size(), std::vector<double>(pair.source.size() + 1));
  for (const Link& link : pair.links)
    if (link.sure) shares[static_cast<std::size_t>(link.target)][static_cast<std::size_t>(link.source)] = 1;
  return make_example(tokens.source, tokens.target, tokens.source_words, tokens.target_words, shares);
}

TokenPair words_of_pair(const BytePairTokenizer& tokenizer, const SentencePair& pair) {
  return {words_of(tokenizer.encode(pair.source), pair.source), words_of(tokenizer.encode(pair.target), pair.target)};
}

Translations printed(const AlignedPair& pair) { return {sentence_text(pair.source, Language::english), {sentence_text(pair.target, Language::french)}}; }

// Where the sentence pairs come from: the grammar or a file.
class Source {
 public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;
  virtual std::vector<std::string> texts() const = 0;  // the texts on which the tokenizer is trained
  virtual models::TranslatorConfig config(nn::Seed seed) const = 0;
  virtual std::int64_t vocabulary() const = 0;
  virtual Plan plan() const = 0;
  virtual std::string description() const = 0;
  virtual std::vector<Example> examples(const BytePairTokenizer& tokenizer, std::int64_t epoch) = 0;
  virtual std::int64_t batch() const = 0;
  virtual double guide_weight() const = 0;
  virtual const std::vector<Translations>& validation() const = 0;
  virtual Validation scored(const TranslationScore& score) const = 0;
};

class GrammarSource final : public Source {
 public:
  explicit GrammarSource(std::uint64_t seed) : seed_(nn::derive_seed(seed, kSentences)) {
    for (std::uint64_t i = 0; i < 400; ++i) validation_.push_back(printed(grammar_sentence(GrammarPart::validation, nn::derive_seed(seed, kValidation), i)));
  }
  std::vector<std::string> texts() const override {
    std::vector<std::string> texts;
    for (const AlignedPair& pair : sentences(0)) texts.push_back(sentence_text(pair.source, Language::english)), texts.push_back(sentence_text(pair.target, Language::french));
    return texts;
  }
  models::TranslatorConfig config(nn::Seed seed) const override { return {.longest = 48, .model_width = 64, .hidden_width = 192, .layers = 2, .heads = 4, .dropout = 0.1, .seed = seed}; }
  std::int64_t vocabulary() const override { return 2600; }
  Plan plan() const override { return {.steps = 3600, .validate_every = 600, .peak_rate = 4e-3, .warmup_steps = 200, .average = 0.99}; }
  std::string description() const override { return cat("sentences of the teaching grammar: ", kSentencesOfEpoch, " new ones in each epoch, ", validation_.size(), " with other combinations of words to validate"); }
  std::vector<Example> examples(const BytePairTokenizer& tokenizer, std::int64_t epoch) override {
    std::vector<Example> list;
    for (const AlignedPair& pair : sentences(static_cast<std::uint64_t>(epoch))) list.push_back(grammar_example(tokenizer, pair));
    return list;
  }
  std::int64_t batch() const override { return 96; }
  double guide_weight() const override { return 0.3; }
  const std::vector<Translations>& validation() const override { return validation_; }
  Validation scored(const TranslationScore& score) const override {
    const double share = static_cast<double>(score.exact) / static_cast<double>(score.sentences);
    return {share, cat("exact ", fixed(share, 4), " of ", score.sentences, " sentences")};
  }

 private:
  static constexpr std::uint64_t kSentencesOfEpoch = 12000;
  std::vector<AlignedPair> sentences(std::uint64_t epoch) const {
    std::vector<AlignedPair> list;
    for (std::uint64_t i = 0; i < kSentencesOfEpoch; ++i) list.push_back(grammar_sentence(GrammarPart::training, seed_, epoch * kSentencesOfEpoch + i));
    return list;
  }
  std::uint64_t seed_;
  std::vector<Translations> validation_;
};

// An invented word of two or three syllables.
std::string invented_word(std::uint64_t seed, bool capital) {
  static constexpr std::string_view kConsonants = "bcdfglmnprstvz", kVowels = "aeiou";
  std::string word;
  for (std::uint64_t i = 0; i < 2 + nn::derive_seed(seed, 0) % 2; ++i) {
    word += kConsonants[nn::derive_seed(seed, 2 * i + 1) % kConsonants.size()];
    word += kVowels[nn::derive_seed(seed, 2 * i + 2) % kVowels.size()];
  }
  if (capital) word[0] = static_cast<char>(word[0] - 'a' + 'A');
  return word;
}

bool is_capital(char c) { return c >= 'A' && c <= 'Z'; }
// True for words of at least four bytes that consist of ASCII letters and bytes of accented letters. Elisions such as "l'" are excluded: an invented
// word in their place would be joined to the next word.
bool is_replaceable(std::string_view word) {
  return word.size() >= 4 && std::ranges::all_of(word, [](unsigned char c) { return ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (c >= 0x80 && c <= 0xC3); });
}


// Makes the first letter small if training also has the word with a small first letter; names therefore keep their capital.
void begin_low(std::string& text, const std::set<std::string>& seen) {
  std::string word = text.substr(0, text.find_first_of(" ',.!?"));
  if (word.empty() || !is_capital(word[0])) return;
  word[0] = static_cast<char>(word[0] | 0x20);
  if (seen.contains(word)) text[0] = word[0];
}

class FileSource final : public Source {
 public:
  explicit FileSource(const TaskOptions& options) : seed_(nn::derive_seed(options.seed, kSentences)) {
    const Data<SentencePair> data = read_pairs(options.data);
    if (!data.bad.empty()) options.note(describe(data.bad, std::ssize(data.rows)));
    std::vector<SentencePair> kept;
    for (const SentencePair& pair : data.rows) (in_validation(pair.source, kValidationShareOfPairs) ? kept : training_).push_back(pair);
    require(!kept.empty() && !training_.empty(), options.data.string(), " has ", counted(data.rows.size(), "sentence pair"), ", too few to train and to validate");
    validation_ = group_by_source(kept);
  }
  std::vector<std::string> texts() const override {
    std::vector<std::string> texts;
    for (const SentencePair& pair : training_) texts.push_back(pair.source), texts.push_back(pair.target);
    return texts;
  }
  models::TranslatorConfig config(nn::Seed seed) const override { return {.longest = 100, .model_width = 128, .hidden_width = 512, .layers = 3, .heads = 4, .dropout = 0.2, .seed = seed}; }
  std::int64_t vocabulary() const override { return 4000; }
  Plan plan() const override { return {.steps = 7000, .validate_every = 1000, .peak_rate = 2e-3, .warmup_steps = 400, .average = 0.998, .optimizer{.weight_decay = 0.02}}; }
  std::string description() const override { return cat(training_.size(), " sentence pairs to train, ", validation_.size(), " sentences to validate"); }
  // Uses each pair at most once, in an order that is drawn for each epoch. Most pairs are joined to longer texts, from which the model learns positions
  // beyond the length of single pairs. Some get an invented word, so that the model learns to align unknown words. Each epoch has the same number of examples.
  std::vector<Example> examples(const BytePairTokenizer& tokenizer, std::int64_t epoch) override {
    if (linked_.empty()) link(tokenizer);
    const std::uint64_t seed = nn::derive_seed(seed_, static_cast<std::uint64_t>(epoch));
    const std::vector<std::int64_t> order = shuffled(std::ssize(linked_), nn::derive_seed(seed, 0));
    std::vector<Example> list;
    for (auto next = order.begin(); next != order.end();) {
      std::vector<LinkedPair> parts;
      std::int64_t tokens = 0;
      for (std::size_t size = kPairsOfExamples[list.size() % std::size(kPairsOfExamples)]; size > 0 && next != order.end(); --size, ++next) {
        const LinkedPair& pair = linked_[static_cast<std::size_t>(*next)];
        if (tokens + pair.tokens > kLongest) continue;
        const std::uint64_t own = nn::derive_seed(seed, static_cast<std::uint64_t>(*next) + 1);
        parts.push_back(nn::derive_seed(own, 0) % 100 < kInvented ? with_invented_word(tokenizer, pair, own) : pair);
        tokens += pair.tokens;
      }
      // At about two of three joins: drop the final . ! or ? of both texts of the first pair, or make it a comma, and begin the next pair with small letters.
      // Real long sentences have no full stops and capitals inside. If joined texts had them, the guided head would learn to find its place by these signs.
      for (std::size_t k = 0; k + 1 < parts.size(); ++k) {
        const std::uint64_t kind = nn::derive_seed(nn::derive_seed(seed, list.size()), k) % 3;
        if (kind == 0) continue;
        parts[k] = without_end(tokenizer, std::move(parts[k]), kind == 1);
        begin_low(parts[k + 1].text.source, seen_source_), begin_low(parts[k + 1].text.target, seen_target_);
      }
      list.push_back(joined_example(tokenizer, parts));
    }
    return list;
  }
  std::int64_t batch() const override { return 36; }
  double guide_weight() const override { return 0.5; }
  const std::vector<Translations>& validation() const override { return validation_; }
  Validation scored(const TranslationScore& score) const override { return {score.bleu, cat("BLEU ", fixed(score.bleu, 2), " of ", score.sentences, " sentences")}; }

 private:
  static constexpr std::int64_t kLongest = 60;  // an example has at most this many tokens
  static constexpr std::size_t kPairsOfExamples[] = {1, 1, 2, 3, 4};  // numbers of pairs that are joined to one example, used in turn
  static constexpr std::uint64_t kInvented = 10;                       // percentage of the pairs in which a word is replaced by an invented word
  void link(const BytePairTokenizer& tokenizer) {
    std::vector<SentencePair> swapped;  // the pairs with source and target swapped, to train the alignment model from French to English
    for (const SentencePair& pair : training_) swapped.push_back({pair.target, pair.source});
    const IbmModel2 teacher = ibm_of_pairs(tokenizer, training_), reverse = ibm_of_pairs(tokenizer, swapped);
    for (const SentencePair& pair : training_) {
      const BytePairText source = tokenizer.encode(pair.source), target = tokenizer.encode(pair.target);
      const std::int64_t tokens = std::max(std::ssize(source.ids), std::ssize(target.ids));
      if (tokens > kLongest) continue;
      const std::vector<std::string> from = words_of(source, pair.source), to = words_of(target, pair.target);
      for (const auto& [words, seen] : {std::pair(source.words_in(pair.source), &seen_source_), {target.words_in(pair.target), &seen_target_}})
        seen->insert(words.begin() + std::min<std::ptrdiff_t>(1, std::ssize(words)), words.end());
      linked_.push_back({pair, tokens, agreed_posterior(teacher.posterior({from, to}), reverse.posterior({to, from}))});
    }
  }
  std::uint64_t seed_;
  std::vector<SentencePair> training_;
  std::vector<LinkedPair> linked_;
  std::set<std::string> seen_source_, seen_target_;  // words that occur anywhere but at the start of a text
  std::vector<Translations> validation_;
};

std::unique_ptr<Source> make_source(const TaskOptions& options) {
  if (options.data.empty() || options.data == kGrammar) return std::make_unique<GrammarSource>(options.seed);
  return std::make_unique<FileSource>(options);
}

class Translating final : public Task {
 public:
  explicit Translating(const TaskOptions& options) : source_(make_source(options)), seed_(options.seed), heads_(options.heads), model_(make_model()), gradients_(nn::zeros_like(model_.network)) { begin_epoch(0); }

  std::vector<std::string> description() const override {
    const models::TranslatorConfig& c = model_.config;
    return {source_->description(), cat(c.vocabulary, " tokens; ", c.layers, " + ", c.layers, " layers of ", c.heads, " heads, ", c.model_width, " wide; guided is head ", c.guided_head, " of the decoder's last attention to the source")};
  }
  Plan plan() const override { return source_->plan(); }
  nn::NamedParameters parameters() override { return nn::parameters(model_.network); }
  nn::NamedParameters gradients() override { return nn::parameters(gradients_); }

  StepResult step(std::int64_t number) override {
    const auto of_epoch = std::ssize(batches_);  // number of batches in an epoch; it is at least 1
    if ((number - 1) / of_epoch != epoch_) begin_epoch((number - 1) / of_epoch);
    take(batches_[static_cast<std::size_t>((number - 1) % of_epoch)]);
    Tensor logits = workspace_.tensor(DType::f32, {target_.extent(0), target_.extent(1), model_.config.vocabulary});
    model_.network.forward(in_, target_, logits,
                           {.source_mask{.key_lengths = lengths_}, .mode = nn::Mode::training, .dropout_seed = nn::derive_seed(nn::derive_seed(seed_, kSteps), static_cast<std::uint64_t>(number)), .workspace = &workspace_}, &saved_);
    const nn::CrossEntropyLoss loss = nn::cross_entropy(logits, labels_, logits, {.ignore_index = -1, .label_smoothing = 0.1});
    const nn::AttentionWeightsGradient guide = heads_ ? nn::AttentionWeightsGradient{} : guided();
    model_.network.backward(saved_, logits, {.parameters = &gradients_, .source_attention_weights = {&guide, heads_ ? 0U : 1U}}, {.workspace = &workspace_});
    return {loss.loss + guide_loss_, loss.positions};
  }

  Validation validate() override { return source_->scored(score_translations(model_, source_->validation())); }
  void save(const std::filesystem::path& folder) const override { models::save_translator(model_, folder); }

 private:
  Translator make_model() const {
    models::TranslatorConfig config = source_->config(nn::derive_seed(seed_, kModel));
    config.heads = heads_.value_or(config.heads);
    return Translator(config, BytePairTokenizer::train(source_->texts(), {.vocabulary = source_->vocabulary(), .special_tokens = Translator::special_tokens()}));
  }

  // Makes batches of sentences of similar length, in an order that is drawn for each epoch.
  void begin_epoch(std::int64_t epoch) {
    examples_ = source_->examples(model_.tokenizer, epoch);
    require(!examples_.empty(), "no sentence pair to train with is short enough");
    epoch_ = epoch;
    const std::uint64_t seed = nn::derive_seed(nn::derive_seed(seed_, kOrder), static_cast<std::uint64_t>(epoch));
    std::vector<std::int64_t> lengths;
    for (const Example& one : examples_) lengths.push_back(std::ssize(one.source) + std::ssize(one.target));
    batches_ = batches_of_like_length(lengths, source_->batch(), seed, nn::derive_seed(seed, 1));
  }

  const Example& example(std::int64_t i) const { return examples_[static_cast<std::size_t>(i)]; }

  void take(const std::vector<std::int64_t>& batch) {
    std::int64_t longest_source = 0, longest_target = 0;
    for (const std::int64_t i : batch) longest_source = std::max(longest_source, std::ssize(example(i).source)), longest_target = std::max(longest_target, std::ssize(example(i).target));
    const std::int64_t count = std::ssize(batch), s = longest_source + 1, t = longest_target + 1;
    in_ = Tensor(DType::i64, {count, s}), target_ = Tensor(DType::i64, {count, t}), labels_ = Tensor(DType::i64, {count, t}), lengths_ = Tensor(DType::i64, {count});
    std::fill_n(in_.data<std::int64_t>(), count * s, Translator::kEnd);
    std::fill_n(target_.data<std::int64_t>(), count * t, Translator::kEnd);
    std::fill_n(labels_.data<std::int64_t>(), count * t, -1);
    guides_.clear();
    for (std::int64_t b = 0; b < count; ++b) {
      const Example& e = example(batch[static_cast<std::size_t>(b)]);
      std::ranges::copy(e.source, in_.data<std::int64_t>() + b * s);
      target_.data<std::int64_t>()[b * t] = Translator::kStart;
      std::ranges::copy(e.target, target_.data<std::int64_t>() + b * t + 1);
      std::ranges::copy(e.target, labels_.data<std::int64_t>() + b * t);
      labels_.data<std::int64_t>()[b * t + std::ssize(e.target)] = Translator::kEnd;
      lengths_.data<std::int64_t>()[b] = std::ssize(e.source) + 1;
      for (const Example::Guide& guide : e.guides) guides_.push_back({b * t + guide.target + 1, guide.source, guide.share});
    }
  }

  nn::AttentionWeightsGradient guided() {
    const nn::MultiHeadAttention::Saved& attention = saved_.decoder.layers.back().cross_attention;
    const std::int64_t head = model_.config.guided_head, b = in_.extent(0), s = in_.extent(1), t = target_.extent(1);
    Tensor p = workspace_.tensor(DType::f32, {b, 1, t, s});
    MapsInput maps = attention.maps();
    maps.q = maps.q.slice(1, head, head + 1), maps.k = maps.k.slice(1, head, head + 1);
    attention_map(maps, p, attention.sdpa);
    d_p_ = Tensor(DType::f32, {b, t, s});
    guide_loss_ = guide_loss(std::as_const(p).data<float>(), s, guides_, source_->guide_weight(), d_p_.data<float>());
    return {.layer = model_.config.layers - 1, .head = head, .d_p = d_p_};
  }

  std::unique_ptr<Source> source_;
  std::uint64_t seed_;
  // The number of heads, if this is a run of `polyhead train heads`; no head is guided in such a run.
  std::optional<std::int64_t> heads_;
  Translator model_;
  nn::EncoderDecoder gradients_;
  std::vector<Example> examples_;
  std::vector<std::vector<std::int64_t>> batches_;
  std::int64_t epoch_ = 0;
  // Each step reuses the memory of the step before. Declared before saved_: the destructor of saved_ returns tensors to the workspace.
  Workspace workspace_;
  nn::EncoderDecoder::Saved saved_;
  Tensor in_, target_, labels_, lengths_, d_p_;
  std::vector<GuideTarget> guides_;
  double guide_loss_ = 0;
};

std::vector<Link> links_of(const std::vector<std::int64_t>& sources) {
  std::vector<Link> links;
  for (std::size_t j = 0; j < sources.size(); ++j)
    if (sources[j] >= 0) links.push_back({sources[j], static_cast<std::int64_t>(j), true});
  return links;
}

}  // namespace

std::unique_ptr<Task> translation_task(const TaskOptions& options) { return std::make_unique<Translating>(options); }

Example joined_example(const BytePairTokenizer& tokenizer, std::span<const LinkedPair> parts) {
  std::string source, target;
  std::size_t source_words = 0, before = 0;
  for (const LinkedPair& part : parts) source_words += part.shares.at(0).size() - 1;
  std::vector<std::vector<double>> shares;
  for (const LinkedPair& part : parts) {
    for (auto [text, all] : {std::pair(&part.text.source, &source), {&part.text.target, &target}}) *all += (all->empty() ? "" : " ") + *text;
    for (const std::vector<double>& row : part.shares) {
      std::ranges::copy(row, shares.emplace_back(source_words + 1).begin() + static_cast<std::ptrdiff_t>(before));
      std::swap(shares.back()[before + row.size() - 1], shares.back().back());
    }
    before += part.shares[0].size() - 1;
  }
  const BytePairText from = tokenizer.encode(source), to = tokenizer.encode(target);
  return make_example(from, to, from.words, to.words, shares);
}

LinkedPair without_end(const BytePairTokenizer& tokenizer, LinkedPair pair, bool comma) {
  const std::vector<models::ByteSpan> from = tokenizer.encode(pair.text.source).word_spans, to = tokenizer.encode(pair.text.target).word_spans;
  const auto ends = [](const std::string& text, const std::vector<models::ByteSpan>& words) {
    return words.size() > 1 && words.back().last == text.size() && std::string_view(".!?").find(text[words.back().first]) != std::string_view::npos;
  };
  if (!ends(pair.text.source, from) || !ends(pair.text.target, to)) return pair;
  for (const auto& [text, words] : {std::pair(&pair.text.source, &from), {&pair.text.target, &to}}) text->resize((*words)[words->size() - 2].last), *text += comma ? "," : "";
  if (comma) return pair;
  pair.shares.pop_back();
  for (std::vector<double>& row : pair.shares) row.erase(row.end() - 2);
  return pair;
}

LinkedPair with_invented_word(const BytePairTokenizer& tokenizer, LinkedPair pair, std::uint64_t seed) {
  constexpr double kSure = 0.8;
  std::string &source = pair.text.source, &target = pair.text.target;
  const std::vector<models::ByteSpan> from = tokenizer.encode(source).word_spans, to = tokenizer.encode(target).word_spans;
  const auto replaceable = [](const std::string& text, const models::ByteSpan& span) { return is_replaceable(std::string_view(text).substr(span.first, span.last - span.first)); };
  std::vector<std::pair<models::ByteSpan, models::ByteSpan>> found;
  for (std::size_t j = 0; j < to.size(); ++j)
    for (std::size_t i = 0; i < from.size(); ++i)
      if (pair.shares[j][i] > kSure && replaceable(source, from[i]) && replaceable(target, to[j])) found.emplace_back(from[i], to[j]);
  if (found.empty()) return pair;
  const auto& [of_source, of_target] = found[nn::derive_seed(seed, 1) % found.size()];
  const auto replace = [](std::string& text, const models::ByteSpan& span, std::uint64_t word) { text.replace(span.first, span.last - span.first, invented_word(word, is_capital(text[span.first]))); };
  const std::uint64_t word = nn::derive_seed(seed, 2), other = nn::derive_seed(seed, 3);
  replace(source, of_source, word), replace(target, of_target, word % 2 == 0 ? word : other);
  return pair;
}

std::vector<std::int64_t> words_of_tokens(const BytePairText& tokens, std::string_view text, const std::vector<std::string>& words) {
  std::vector<models::ByteSpan> spans;
  std::size_t at = 0;
  for (const std::string& word : words) {
    at = text.find(word, at);
    require(at != text.npos, "words_of_tokens: '", word, "' is not in the text after the words before it");
    spans.push_back({at, at + word.size()});
    at += word.size();
  }
  std::vector<std::int64_t> result;
  for (const models::ByteSpan& token : tokens.spans) {
    const auto touches = [&](const models::ByteSpan& word) { return word.first < token.last && token.first < word.last; };
    const auto found = std::ranges::find_if(spans, touches);
    result.push_back(found == spans.end() ? -1 : found - spans.begin());
  }
  return result;
}

AlignedTokens aligned_tokens(const BytePairTokenizer& tokenizer, const AlignedPair& pair) {
  AlignedTokens tokens{tokenizer.encode_words(join(pair.source, {}, " ")), tokenizer.encode_words(join(pair.target, {}, " ")), {}, {}, pair};
  tokens.source_words = tokens.source.words, tokens.target_words = tokens.target.words;
  return tokens;
}

AlignedTokens grammar_tokens(const BytePairTokenizer& tokenizer, const AlignedPair& pair) {
  const std::string source = sentence_text(pair.source, Language::english), target = sentence_text(pair.target, Language::french);
  AlignedTokens tokens{tokenizer.encode(source), tokenizer.encode(target), {}, {}, pair};
  tokens.source_words = words_of_tokens(tokens.source, source, pair.source);
  tokens.target_words = words_of_tokens(tokens.target, target, pair.target);
  return tokens;
}

TranslationScore score_translations(const Translator& model, const std::vector<Translations>& sentences, std::int64_t beams) {
  TranslationScore score{.sentences = std::ssize(sentences)};
  std::vector<std::vector<std::int64_t>> sources;
  for (const Translations& sentence : sentences) {
    sources.push_back(model.tokenizer.encode(sentence.source).ids);
    if (std::ssize(sources.back()) > model.config.longest) sources.back().clear(), ++score.too_long;
  }
  const auto tokens = models::translate_all(model, sources, {.beams = beams});
  std::vector<std::vector<std::string>> references;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    score.texts.push_back(sources[i].empty() ? "" : model.tokenizer.decode(tokens[i]));
    references.push_back(sentences[i].targets);
    score.exact += std::ranges::count(references[i], score.texts[i]) > 0;
  }
  score.bleu = corpus_bleu(score.texts, references);
  return score;
}

AlignmentScore score_alignment(const Translator& model, const std::vector<AlignedTokens>& pairs, const IbmModel2* ibm) {
  const auto layers = static_cast<std::size_t>(model.config.layers), heads = static_cast<std::size_t>(model.config.heads);
  std::vector<std::vector<AlignmentErrors>> errors(layers, std::vector<AlignmentErrors>(heads));
  AlignmentErrors diagonal, of_ibm;
  for (const AlignedTokens& tokens : pairs) {
    const AlignedPair& pair = tokens.pair;
    const models::Translation read = models::read_translation(model, tokens.source, tokens.target);
    for (std::size_t layer = 0; layer < layers; ++layer)
      for (std::size_t head = 0; head < heads; ++head) {
        const ConstTensorView map = read.attentions.view().select(0, static_cast<std::int64_t>(layer)).select(0, static_cast<std::int64_t>(head));
        errors[layer][head].add(links_of(models::align_words(map, tokens.source_words, tokens.target_words, std::ssize(pair.target))), pair.links);
      }
    diagonal.add(diagonal_links(std::ssize(pair.source), std::ssize(pair.target)), pair.links);
    if (ibm != nullptr) of_ibm.add(ibm->align({lower(pair.source), lower(pair.target)}), pair.links);
  }
  AlignmentScore score{.sentences = std::ssize(pairs), .diagonal = diagonal.rate()};
  if (ibm != nullptr) score.ibm = of_ibm.rate();
  for (const auto& layer : errors) std::ranges::transform(layer, std::back_inserter(score.heads.emplace_back()), &AlignmentErrors::rate);
  score.guided = score.heads.back()[static_cast<std::size_t>(model.config.guided_head)];
  return score;
}

IbmModel2 ibm_of_pairs(const BytePairTokenizer& tokenizer, const std::vector<SentencePair>& pairs) {
  constexpr std::size_t kMostWords = 200;  // longer pairs are left out, because the table of translations grows with the product of both lengths
  std::vector<TokenPair> words;
  for (const SentencePair& pair : pairs)
    if (TokenPair own = words_of_pair(tokenizer, pair); std::max(own.source.size(), own.target.size()) <= kMostWords) words.push_back(std::move(own));
  return IbmModel2(words);
}

IbmModel2 ibm_of_grammar() {
  std::vector<TokenPair> words;
  for (std::uint64_t i = 0; i < 5000; ++i) {
    const AlignedPair pair = grammar_sentence(GrammarPart::training, 0, i);
    words.push_back({lower(pair.source), lower(pair.target)});
  }
  return IbmModel2(words);
}

std::vector<AlignedPair> held_out_sentences(std::int64_t count) {
  std::vector<AlignedPair> list;
  for (std::int64_t i = 0; i < count; ++i) list.push_back(grammar_sentence(GrammarPart::held_out, 0, static_cast<std::uint64_t>(i)));
  return list;
}

}  // namespace polyhead::training
