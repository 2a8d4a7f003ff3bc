#include "training/classification.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "core/text.h"
#include "polyhead/nn/cross_entropy.h"
#include "polyhead/nn/seed.h"
#include "training/bag_of_words.h"
#include "training/draw.h"
#include "training/figures.h"
#include "training/order.h"
#include "training/statistics.h"
#include "training/term_scores.h"

namespace polyhead::training {
namespace {

using models::ByteSpan;
using models::TextInput;
using models::TextModel;

// kTwoSidedEvery: every third training step learns from texts that have a positive and a negative part.
constexpr std::int64_t kBatch = 64, kTwoSidedEvery = 3;
constexpr double kWordDropout = 0.15, kSideLoss = 1, kValidationShare = 0.1;
// A rating is kScoresCount times the result of the term scores plus kHeadsCount times the result of the heads: docs/experiments.md, "Ratings of texts".
constexpr double kScoresCount = 1.15, kHeadsCount = 0.1;
// kScoredHalves: how many two-sided texts are scored in validation. kJoinedText: a text is joined with another only if it has at most this many words.
constexpr std::int64_t kScoredHalves = 200, kJoinedText = 20;

// Returns the texts as inputs of the model. Texts with too many tokens are removed from `data`; note() reports their number.
std::vector<TextInput> inputs_of(const TextModel& model, ClassifiedTexts& data, const std::function<void(const std::string&)>& note) {
  std::vector<TextInput> all;
  const std::int64_t longest = model.classifier.config.longest;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < data.texts.size(); ++i) {
    TextInput input = models::input_of(model, data.texts[i]);
    if (std::ssize(input.ids) > longest) continue;
    all.push_back(std::move(input));
    if (kept < i) data.texts[kept] = std::move(data.texts[i]), data.ratings[kept] = data.ratings[i];
    ++kept;
  }
  if (kept < data.texts.size()) note(cat(counted(data.texts.size() - kept, "text"), " of more than ", longest, " tokens left out"));
  data.texts.resize(kept), data.ratings.resize(kept);
  return all;
}

struct Answers {
  std::vector<double> ratings;
  std::vector<std::int64_t> labels;
};
Answers answer(const models::TextClassifier& classifier, const std::vector<TextInput>& inputs) {
  const Tensor all = Tensor::copy_of(models::classify_all(classifier, inputs), DType::f64);
  const std::int64_t outputs = classifier.config.outputs();
  Answers answers;
  for (const double* row = all.data<double>(); row < all.data<double>() + all.numel(); row += outputs)
    outputs == 1 ? answers.ratings.push_back(*row) : answers.labels.push_back(std::max_element(row, row + outputs) - row);
  return answers;
}

ClassificationScore score(const ClassifiedTexts& data, const Answers& answers) {
  if (data.labels.empty()) {
    const auto counted = static_cast<std::int64_t>(std::ranges::count_if(data.ratings, [](double y) { return y != 0; }));
    return {counted, sign_accuracy(answers.ratings, data.ratings), correlation(answers.ratings, data.ratings)};
  }
  const std::vector<std::int64_t> wanted(data.ratings.begin(), data.ratings.end());
  return {std::ssize(wanted), accuracy(answers.labels, wanted), std::numeric_limits<double>::quiet_NaN()};
}

class Classification final : public Task {
 public:
  explicit Classification(const TaskOptions& options) : seed_(options.seed) {
    const ClassifiedTexts data = read_classified_texts(options.data);
    if (!data.skipped.empty()) options.note(data.skipped);
    training_.labels = validation_.labels = data.labels;
    for (std::size_t i = 0; i < data.texts.size(); ++i) {
      ClassifiedTexts& part = in_validation(data.texts[i], kValidationShare) ? validation_ : training_;
      part.texts.push_back(data.texts[i]), part.ratings.push_back(data.ratings[i]);
    }
    require(training_.texts.size() > 1 && validation_.texts.size() > 1, options.data.string(), " has ", counted(data.texts.size(), "text"), "; training and validation need more");
    if (data.labels.empty() && !options.heads) {
      const auto [least, most] = std::ranges::minmax(data.ratings);
      require(least < 0 && most > 0, options.data.string(), ": ratings are from ", least, " to ", most, "; some must be below 0 and some above 0 (labels must be words, not numbers)");
    }
    models::TextClassifierConfig config{.dropout = 0.3, .seed = nn::derive_seed(seed_, 0)};
    config.heads = options.heads.value_or(config.heads);
    for (const std::string& label : data.labels) config.labels += (config.labels.empty() ? "" : "\t") + label;
    model_.tokenizer = models::BytePairTokenizer::train(training_.texts, {.vocabulary = 4000, .lowercase = true, .special_tokens = {"<any>"}});
    config.vocabulary = model_.tokenizer.vocabulary_size();
    model_.classifier.config = config;  // set it now, because inputs_of() reads it
    const bool scored = !options.heads, rated = data.labels.empty();
    if (scored && !rated) {
      model_.terms = most_frequent_terms(training_.texts);
    }
    training_inputs_ = inputs_of(model_, training_, options.note);
    if (scored && rated) {
      // Validation uses term scores that are fitted to the training texts. The saved model has term scores that are fitted to all texts.
      scores_ = fit_term_scores(training_, config, kScoresCount);
      ClassifiedTexts all = training_;
      all.texts.insert(all.texts.end(), validation_.texts.begin(), validation_.texts.end());
      all.ratings.insert(all.ratings.end(), validation_.ratings.begin(), validation_.ratings.end());
      saved_scores_ = fit_term_scores(all, config, kScoresCount);
    }
    TextModel reader = model_;
    if (rated) reader.terms = scores_.terms;
    validation_inputs_ = inputs_of(reader, validation_, options.note);
    require(!training_inputs_.empty() && !validation_inputs_.empty(), options.data.string(), ": no text has at most ", config.longest, " tokens");
    config.terms = std::ssize(model_.terms);
    model_.classifier = models::TextClassifier(config);
    gradients_ = nn::zeros_like(model_.classifier);
    if (!options.heads) sides_ = Sides(model_, training_, 0.7, kJoinedText);
    if (!sides_) return;
    model_.classifier.config.taught_heads = kNegativeHead + 1;
    halves_ = two_sided_texts(model_, validation_, kScoredHalves, nn::derive_seed(seed_, 1));
  }

  std::vector<std::string> description() const override {
    const auto& config = model_.classifier.config;
    std::vector<std::string> lines{
        cat(counted(training_.texts.size(), "text"), " to train, ", validation_.texts.size(), " to validate, ", training_.labels.empty() ? "with ratings" : cat("in ", training_.labels.size(), " classes")),
        cat(config.vocabulary, " tokens; ", config.layers, " layers of ", config.heads, " heads, ", config.model_width, " wide")};
    if (!scores_.terms.empty()) lines.push_back(cat(saved_scores_.terms.size(), " scores of words and pairs, fitted to all texts; the figures below are with scores fitted to the training texts"));
    if (training_.labels.empty()) lines.push_back(cat("for comparison, a bag of words and word pairs: ", described(score_bag_of_words(training_, validation_))));
    return lines;
  }
  Plan plan() const override { return {.steps = 3000, .validate_every = 500, .peak_rate = 1e-3, .warmup_steps = 200, .average = 0.99}; }
  nn::NamedParameters parameters() override { return nn::parameters(model_.classifier); }
  nn::NamedParameters gradients() override { return nn::parameters(gradients_); }

  StepResult step(std::int64_t number) override {
    const std::uint64_t of_step = nn::derive_seed(nn::derive_seed(seed_, 2), static_cast<std::uint64_t>(number));
    const bool two_sided = sides_ && number % kTwoSidedEvery == 0;
    std::vector<TextInput> batch;
    wanted_.clear(), parts_.clear();
    if (two_sided) {
      for (std::uint64_t i = 0; i < kBatch; ++i) {
        const TwoSidedText drawn = sides_.draw(training_, nn::derive_seed(of_step, i), true);
        const models::BytePairText tokens = model_.tokenizer.encode(drawn.text);
        batch.push_back({.ids = tokens.ids}), wanted_.push_back(drawn.rating), parts_.emplace_back();
        for (const ByteSpan& span : tokens.spans) parts_.back().push_back({inside(span, drawn.positive), inside(span, drawn.negative)});
      }
    } else {
      for (const std::int64_t i : batch_of(sides_ ? number - number / kTwoSidedEvery : number))
        batch.push_back(training_inputs_[static_cast<std::size_t>(i)]), wanted_.push_back(training_.ratings[static_cast<std::size_t>(i)]);
    }
    return learn(batch, two_sided, of_step);
  }

  Validation validate() override {
    const TextModel whole = with_scores(scores_);
    const ClassificationScore result = score(validation_, answer(whole.classifier, validation_inputs_));
    if (!validation_.labels.empty()) return {result.accuracy, described(result)};
    std::string text = described(result);
    if (!halves_.empty()) text += cat(", both halves read in ", score_halves(whole, halves_).both, " of ", halves_.size());
    return {result.correlation, text};  // the correlation varies less from validation to validation than the accuracy and the number of texts of which both halves are read
  }

  void save(const std::filesystem::path& folder) const override { models::save_text_model(with_scores(saved_scores_), folder); }

 private:
  // Returns the model that is validated and saved: the heads' result is scaled, and the term scores are added.
  TextModel with_scores(const TermScores& scores) const {
    TextModel whole = model_;
    if (!scores.table) return whole;
    whole.terms = scores.terms, whole.classifier.scores = scores.table, whole.classifier.config.terms = std::ssize(scores.terms);
    for (Tensor* part : {&whole.classifier.output.weight, &whole.classifier.output.bias})
      for (float& x : std::span(part->data<float>(), static_cast<std::size_t>(part->numel()))) x *= static_cast<float>(kHeadsCount);
    whole.classifier.output.bias.data<float>()[0] += static_cast<float>(scores.constant);
    return whole;
  }

  // The indices of the training texts in the batch of step `number`.
  const std::vector<std::int64_t>& batch_of(std::int64_t number) {
    const auto batches = (std::ssize(training_inputs_) + kBatch - 1) / kBatch;
    const std::int64_t epoch = (number - 1) / batches;
    if (epoch != epoch_) {
      const std::uint64_t seed = nn::derive_seed(nn::derive_seed(seed_, 3), static_cast<std::uint64_t>(epoch_ = epoch));
      std::vector<std::int64_t> lengths;
      for (const TextInput& input : training_inputs_) lengths.push_back(std::ssize(input.ids));
      batches_ = batches_of_like_length(lengths, kBatch, seed, nn::derive_seed(seed, 0));
    }
    return batches_[static_cast<std::size_t>((number - 1) % batches)];
  }

  StepResult learn(std::vector<TextInput> batch, bool two_sided, std::uint64_t of_step) {
    const std::int64_t texts = std::ssize(batch), outputs = model_.classifier.config.outputs();
    std::int64_t tokens = 0;
    for (TextInput& text : batch)
      for (std::int64_t& id : text.ids)
        if (uniform(nn::derive_seed(of_step, 1), static_cast<std::uint64_t>(tokens++)) < kWordDropout) id = 0;
    const models::TextInputs inputs(batch);
    const std::vector<std::int64_t>& lengths = inputs.lengths;
    const std::int64_t longest = std::ssize(inputs.ids) / texts;
    Tensor answers(DType::f32, {texts, outputs}), segments, d_masses;
    if (two_sided) {
      segments = Tensor(DType::f32, {texts, longest, 2}), d_masses = Tensor(DType::f32, {texts, model_.classifier.config.heads, 2});
      for (std::int64_t b = 0; b < texts; ++b)
        for (std::int64_t t = 0; t < lengths[static_cast<std::size_t>(b)]; ++t)
          for (std::int64_t k = 0; k < 2; ++k) segments.data<float>()[(b * longest + t) * 2 + k] = parts_[static_cast<std::size_t>(b)][static_cast<std::size_t>(t)][static_cast<std::size_t>(k)] ? 1 : 0;
    }
    models::TextClassifier::Batch views = inputs.batch();
    views.segments = segments;
    model_.classifier.forward(views, answers, saved_, {.mode = nn::Mode::training, .dropout_seed = nn::derive_seed(of_step, 2), .workspace = &workspace_});
    double loss = 0;
    if (outputs > 1) {
      const std::vector<std::int64_t> labels(wanted_.begin(), wanted_.end());
      loss = nn::cross_entropy(answers, ConstTensorView(labels.data(), {texts}), answers).loss;
    } else {
      loss = rating_loss(answers);
    }
    if (two_sided) loss += side_loss(d_masses);
    model_.classifier.backward(saved_, answers, gradients_, d_masses, {.workspace = &workspace_});
    return {loss, tokens};
  }

  // Returns the mean of (answer - rating)^2 + half the cross entropy of sigmoid(2 answer) and the rating's sign; overwrites the answers with the gradient.
  double rating_loss(Tensor& answers) const {
    double loss = 0;
    const auto count = static_cast<double>(wanted_.size());
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      float& answer = answers.data<float>()[i];
      const double error = static_cast<double>(answer) - wanted_[i], side = wanted_[i] > 0 ? 1 : 0, x = 2 * static_cast<double>(answer);
      double d_answer = 2 * error;
      loss += error * error;
      if (wanted_[i] != 0) {
        loss += 0.5 * (std::max(x, 0.0) - x * side + std::log1p(std::exp(-std::abs(x))));
        d_answer += 1 / (1 + std::exp(-x)) - side;
      }
      answer = static_cast<float>(d_answer / count);
    }
    return loss / count;
  }

  // Returns the weighted mean of -log(attention of the positive head to the positive part) - log(attention of the negative head to the negative part).
  double side_loss(Tensor& d_masses) const {
    const Tensor masses = Tensor::copy_of(saved_.masses());
    double loss = 0;
    const double weight = kSideLoss / static_cast<double>(masses.extent(0));
    for (std::int64_t b = 0; b < masses.extent(0); ++b)
      for (const auto& [head, part] : {std::pair(kPositiveHead, 0), std::pair(kNegativeHead, 1)}) {
        const std::int64_t at = (b * masses.extent(1) + head) * 2 + part;
        const double mass = static_cast<double>(masses.data<float>()[at]) + 1e-6;
        loss -= weight * std::log(mass);
        d_masses.data<float>()[at] = static_cast<float>(-weight / mass);
      }
    return loss;
  }

  std::uint64_t seed_;
  ClassifiedTexts training_, validation_;
  TextModel model_{models::BytePairTokenizer(nullptr), {}};
  models::TextClassifier gradients_;
  std::vector<TextInput> training_inputs_, validation_inputs_;
  Sides sides_;
  std::vector<TwoSidedText> halves_;
  std::vector<std::vector<std::int64_t>> batches_;  // the batches of the epoch with the number epoch_
  std::int64_t epoch_ = -1;
  std::vector<double> wanted_;                             // the ratings of the batch's texts
  // For each token of the batch: whether it is in the positive part of its text, and whether it is in the negative part.
  std::vector<std::vector<std::array<bool, 2>>> parts_;
  TermScores scores_, saved_scores_;                           // used only if the data has ratings
  Workspace workspace_;  // declared before saved_: the destructor of saved_ returns tensors to the workspace
  models::TextClassifier::Saved saved_;
};

}  // namespace

std::unique_ptr<Task> classification_task(const TaskOptions& options) {
  require(!options.data.empty(), "classify needs --data FILE of lines 'rating TAB text' or 'label TAB text'");
  return std::make_unique<Classification>(options);
}

ScoredTexts::ScoredTexts(const TextModel& model, ClassifiedTexts given, const std::function<void(const std::string&)>& note) : data(std::move(given)) {
  const auto known = model.classifier.config.label_list();
  require(known.empty() == data.labels.empty(), "the model answers with ", known.empty() ? "ratings" : "labels", ", but the file has ", data.labels.empty() ? "ratings" : "labels");
  for (double& number : data.ratings) {  // convert the number that a label has in the data to the number that it has in the model
    if (known.empty()) break;
    const auto found = std::ranges::find(known, data.labels[static_cast<std::size_t>(number)]);
    require(found != known.end(), "the model does not know the label '", data.labels[static_cast<std::size_t>(number)], "'");
    number = static_cast<double>(found - known.begin());
  }
  data.labels = known;
  inputs = inputs_of(model, data, note);
  require(!inputs.empty(), "there is no text to score");
}

ClassificationScore score_texts(const TextModel& model, const ScoredTexts& texts) { return score(texts.data, answer(model.classifier, texts.inputs)); }

ClassificationScore score_bag_of_words(const ClassifiedTexts& training, const ClassifiedTexts& data) {
  require(training.labels.empty() && data.labels.empty(), "a bag of words answers with ratings; the file has labels");
  const BagOfWords baseline(training.texts, training.ratings);
  Answers answers;
  for (const std::string& text : data.texts) answers.ratings.push_back(baseline.predict(text));
  return score(data, answers);
}

std::string described(const ClassificationScore& score) {
  return cat("accuracy ", fixed(score.accuracy, 4), std::isnan(score.correlation) ? "" : cat(", correlation ", fixed(score.correlation, 4)));
}

std::vector<WithoutHead> score_without_heads(const TextModel& model, const ScoredTexts& texts) {
  const auto& [data, inputs] = texts;
  const Answers with = answer(model.classifier, inputs);
  const double before = score(data, with).accuracy;
  TextModel changed = model;
  std::vector<WithoutHead> result;
  for (std::int64_t layer = 0; layer <= model.classifier.config.layers; ++layer)
    for (std::int64_t head = 0; head < model.classifier.config.heads; ++head) {
      const auto output = [&](auto& classifier) -> auto& { return layer < classifier.config.layers ? classifier.encoder.layers[static_cast<std::size_t>(layer)].attention.output.weight : classifier.output.weight; };
      Tensor& weight = output(changed.classifier);
      const std::int64_t width = weight.extent(1) / model.classifier.config.heads;
      fill(weight.view().slice(1, head * width, (head + 1) * width), 0);
      const Answers without = answer(changed.classifier, inputs);
      WithoutHead row{.layer = layer, .head = head, .accuracy = score(data, without).accuracy - before};
      const auto count = static_cast<double>(inputs.size());
      for (std::size_t i = 0; i < inputs.size(); ++i)
        row.change += (data.labels.empty() ? std::abs(without.ratings[i] - with.ratings[i]) : static_cast<double>(without.labels[i] != with.labels[i])) / count;
      result.push_back(row);
      copy(output(model.classifier), weight);
    }
  return result;
}

}  // namespace polyhead::training
