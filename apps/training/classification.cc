#include "training/classification.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "core/text.h"
#include "polyhead/nn/cross_entropy.h"
#include "polyhead/nn/seed.h"
#include "training/bag_of_words.h"
#include "training/data.h"
#include "training/figures.h"
#include "training/order.h"
#include "training/ridge.h"
#include "training/statistics.h"

namespace polyhead::training {
namespace {

using models::ByteSpan;
using models::TextModel;
using models::TextInput;

constexpr std::int64_t kBatch = 64, kTwoSidedEvery = 3;  // every third step learns from texts with two sides
constexpr double kWordDropout = 0.15, kSideLoss = 1, kValidationShare = 0.1, kEnoughMass = 0.45;
constexpr double kScoresCount = 1.15, kHeadsCount = 0.1, kScorePenalty = 4000;  // in the answer; of the ridge regression: docs/experiments.md, "Ratings of texts"
constexpr double kRatingPower = 0.75;                       // the scores are fitted to sign(rating) |rating|^0.75, where the sign counts more
constexpr std::size_t kMostTerms = 40'000;                  // that have scores
constexpr std::int64_t kScoredHalves = 200, kShortText = 12, kJoinedText = 20;  // words of the texts that are scored, and learned from, as halves
constexpr std::array kJoints{", but ", ", but ", ", but ", ". ", "; ", ", though ", ", however ", " but ", ", and yet ", ", although ", ". But ", " and "};

double uniform(std::uint64_t seed, std::uint64_t number) { return static_cast<double>(nn::derive_seed(seed, number) >> 11) * 0x1p-53; }

// A text as part of another one: without the signs at its end.
std::string_view clause(std::string_view text) {
  while (text.size() > 1 && std::string_view(".!?,;: ").find(text.back()) != text.npos) text.remove_suffix(1);
  return text;
}

TwoSidedText joined(const ClassifiedTexts& data, std::size_t positive, std::size_t negative, std::string_view joint, bool positive_first) {
  const std::string_view first = clause(data.texts[positive_first ? positive : negative]), second = clause(data.texts[positive_first ? negative : positive]);
  TwoSidedText result{.text = cat(first, joint, second), .positive = {0, first.size()}, .negative = {first.size() + joint.size(), first.size() + joint.size() + second.size()}};
  if (!positive_first) std::swap(result.positive, result.negative);
  result.rating = (data.ratings[positive] + data.ratings[negative]) / 2;
  return result;
}

// Short texts with a clear rating, two of which the model can read as one.
struct Sides {
  std::vector<std::size_t> positive, negative;
  Sides() = default;
  Sides(const TextModel& model, const ClassifiedTexts& data, double least, std::int64_t words) {
    if (!data.labels.empty()) return;
    constexpr std::int64_t kJointTokens = 16;
    const std::int64_t most = (model.classifier.config.longest - kJointTokens) / 2;
    for (std::size_t i = 0; i < data.texts.size(); ++i) {
      const std::string& text = data.texts[i];
      if (std::abs(data.ratings[i]) < least || std::ssize(split_at_white_space(text)) > words || std::ssize(model.tokenizer.encode(text).ids) > most) continue;
      (data.ratings[i] > 0 ? positive : negative).push_back(i);
    }
  }
  explicit operator bool() const { return positive.size() > 1 && negative.size() > 1; }
  TwoSidedText draw(const ClassifiedTexts& data, std::uint64_t seed, bool any_joint) const {
    const auto pick = [&](const std::vector<std::size_t>& list, std::uint64_t number) { return list[nn::derive_seed(seed, number) % list.size()]; };
    return joined(data, pick(positive, 0), pick(negative, 1), kJoints[any_joint ? nn::derive_seed(seed, 2) % kJoints.size() : 0], nn::derive_seed(seed, 3) % 2 == 0);
  }
};

bool inside(ByteSpan token, ByteSpan part) { return token.first >= part.first && token.last <= part.last; }

// All texts as the model takes them. Texts with more tokens than it takes are left out of `data`; the note counts them.
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

// The terms of texts, with numbers in their order.
struct TermCounts {
  std::vector<std::string> terms;
  std::vector<double> texts_with;              // of each term
  std::vector<std::vector<std::size_t>> rows;  // of each text its terms
  std::vector<double> shares;                  // of each text

  explicit TermCounts(const std::vector<std::string>& texts) {
    std::vector<models::TextTerms> all;
    std::map<std::string, std::size_t> numbers;
    for (const std::string& text : texts) {
      all.push_back(models::terms_of(text)), shares.push_back(all.back().share);
      for (const std::string& term : all.back().terms) numbers.emplace(term, 0);
    }
    for (auto& [term, number] : numbers) number = terms.size(), terms.push_back(term);
    texts_with.resize(terms.size());
    for (const models::TextTerms& text : all) {
      rows.emplace_back();
      for (const std::string& term : text.terms) rows.back().push_back(numbers[term]), texts_with[rows.back().back()] += 1;
    }
  }
  // Of the terms that two texts or more have, the kMostTerms of largest importance, in order.
  std::vector<std::size_t> best(const std::vector<double>& importance) const {
    std::vector<std::size_t> list;
    for (std::size_t i = 0; i < terms.size(); ++i)
      if (texts_with[i] >= 2) list.push_back(i);
    std::ranges::stable_sort(list, std::ranges::greater{}, [&](std::size_t i) { return importance[i]; });
    list.resize(std::min(list.size(), kMostTerms));
    std::ranges::sort(list);
    return list;
  }
  std::vector<std::string> names(const std::vector<std::size_t>& of) const {
    std::vector<std::string> list;
    for (const std::size_t i : of) list.push_back(terms[i]);
    return list;
  }
};

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
      require(least < 0 && most > 0, options.data.string(), ": ratings are from ", least, " to ", most, "; they must be on both sides of 0, or labels that are words");
    }
    models::TextClassifierConfig config{.dropout = 0.3, .seed = nn::derive_seed(seed_, 0)};
    config.heads = options.heads.value_or(config.heads);
    for (const std::string& label : data.labels) config.labels += (config.labels.empty() ? "" : "\t") + label;
    model_.tokenizer = models::BytePairTokenizer::train(training_.texts, {.vocabulary = 4000, .lowercase = true, .special_tokens = {"<any>"}});
    config.vocabulary = model_.tokenizer.vocabulary_size();
    model_.classifier.config = config;  // for inputs_of
    const bool scored = !options.heads, rated = data.labels.empty();
    if (scored && !rated) {
      const TermCounts counts(training_.texts);
      model_.terms = counts.names(counts.best(counts.texts_with));
    }
    training_inputs_ = inputs_of(model_, training_, options.note);
    if (scored && rated) {
      scores_ = fit_scores(training_, config);
      ClassifiedTexts all = training_;
      all.texts.insert(all.texts.end(), validation_.texts.begin(), validation_.texts.end());
      all.ratings.insert(all.ratings.end(), validation_.ratings.begin(), validation_.ratings.end());
      saved_scores_ = fit_scores(all, config);
    }
    TextModel reader = model_;
    if (rated) reader.terms = scores_.terms;
    validation_inputs_ = inputs_of(reader, validation_, options.note);
    require(!training_inputs_.empty() && !validation_inputs_.empty(), options.data.string(), ": no text has at most ", config.longest, " tokens");
    config.terms = std::ssize(model_.terms);
    model_.classifier = models::TextClassifier(config);
    gradients_ = nn::zeros_like(model_.classifier);
    studied_ = options.heads.has_value();
    if (!studied_) sides_ = Sides(model_, training_, 0.7, kJoinedText);
    if (!sides_) return;
    model_.classifier.config.taught_heads = kNegativeHead + 1;
    halves_ = two_sided_texts(model_, validation_, kScoredHalves, nn::derive_seed(seed_, 1));
  }

  std::vector<std::string> description() const override {
    const auto& config = model_.classifier.config;
    std::vector<std::string> lines{
        cat(counted(training_.texts.size(), "text"), " to train, ", validation_.texts.size(), " to validate, ", training_.labels.empty() ? "with ratings" : cat("in ", training_.labels.size(), " classes")),
        cat(config.vocabulary, " tokens; ", config.layers, " layers of ", config.heads, " heads, ", config.model_width, " wide")};
    if (!scores_.terms.empty()) lines.push_back(cat(saved_scores_.terms.size(), " scores of words and pairs, of all texts; the figures below are of the model with those of the texts to train"));
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
      for (const std::size_t i : batch_of(sides_ ? number - number / kTwoSidedEvery : number)) batch.push_back(training_inputs_[i]), wanted_.push_back(training_.ratings[i]);
    }
    return learn(batch, two_sided, of_step);
  }

  Validation validate() override {
    const TextModel whole = with_scores(scores_);
    const ClassificationScore result = score(validation_, answer(whole.classifier, validation_inputs_));
    if (!validation_.labels.empty()) return {result.accuracy, described(result)};
    std::string text = described(result);
    if (!halves_.empty()) text += cat(", both halves read in ", score_halves(whole, halves_).both, " of ", halves_.size());
    return {result.correlation, text};  // steadier than the other two
  }

  void save(const std::filesystem::path& folder) const override {
    if (!studied_) models::save_text_model(with_scores(saved_scores_), folder);
  }

 private:
  struct Scores {  // of terms, as the answer counts them
    std::vector<std::string> terms;
    Tensor table;
    double constant = 0;
  };

  // The scores are the ridge regression of the ratings on the terms. A term counts more where it is rare, as in tf-idf, and where its texts are
  // rated unlike the others (as in NB-SVM, Wang and Manning 2012); all terms are fitted, those that say most are kept. The heads are
  // trained without the scores, and the answer is a weighted sum of both: trained jointly, the scores overfit.
  // Validation uses scores that are fitted to the training texts; the saved ones are fitted to all texts.
  static Scores fit_scores(const ClassifiedTexts& data, models::TextClassifierConfig config) {
    const TermCounts counts(data.texts);
    const auto texts = static_cast<double>(data.ratings.size());
    const double mean = std::accumulate(data.ratings.begin(), data.ratings.end(), 0.0) / texts;
    std::vector<double> values(counts.texts_with.size()), importance(values.size());
    for (std::size_t i = 0; i < counts.rows.size(); ++i)
      for (const std::size_t term : counts.rows[i]) values[term] += data.ratings[i] - mean;
    for (std::size_t term = 0; term < values.size(); ++term) {
      const double rare = 1 + std::log((1 + texts) / (1 + counts.texts_with[term])), unlike = 0.1 + std::abs(values[term]) / (counts.texts_with[term] + 3);
      values[term] = rare * unlike * (counts.terms[term].find(models::kTermGap) == std::string::npos ? 1 : 0.7);
    }
    std::vector<SparseRow> rows(counts.rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i)
      for (const std::size_t term : counts.rows[i]) rows[i].push_back({term, counts.shares[i] * values[term]});
    std::vector<double> wanted;
    for (const double rating : data.ratings) wanted.push_back(std::copysign(std::pow(std::abs(rating), kRatingPower), rating));
    const Ridge ridge = fit_ridge(rows, values.size(), wanted, {.penalty = kScorePenalty});
    for (std::size_t term = 0; term < values.size(); ++term) importance[term] = std::abs(ridge.parameters[term] * values[term]) * std::sqrt(counts.texts_with[term]);
    const std::vector<std::size_t> best = counts.best(importance);
    Scores scores{.terms = counts.names(best), .constant = kScoresCount * ridge.constant};
    if (scores.terms.empty()) return scores;
    config.terms = std::ssize(scores.terms);
    scores.table = models::TextClassifier(config).scores;
    for (std::size_t i = 0; i < best.size(); ++i) scores.table.data<float>()[i] = static_cast<float>(kScoresCount * ridge.parameters[best[i]] * values[best[i]]);
    return scores;
  }

  // The model that is validated or saved.
  TextModel with_scores(const Scores& scores) const {
    TextModel whole = model_;
    if (!scores.table) return whole;
    whole.terms = scores.terms, whole.classifier.scores = scores.table, whole.classifier.config.terms = std::ssize(scores.terms);
    for (Tensor* part : {&whole.classifier.output.weight, &whole.classifier.output.bias})
      for (float& x : std::span(part->data<float>(), static_cast<std::size_t>(part->numel()))) x *= static_cast<float>(kHeadsCount);
    whole.classifier.output.bias.data<float>()[0] += static_cast<float>(scores.constant);
    return whole;
  }

  // Which texts step `number` takes: of similar lengths, epoch after epoch, each in an order of its own.
  std::vector<std::size_t> batch_of(std::int64_t number) {
    const auto count = std::ssize(training_inputs_), batches = (count + kBatch - 1) / kBatch;
    const std::int64_t epoch = (number - 1) / batches;
    if (epoch != epoch_) {
      const std::uint64_t seed = nn::derive_seed(nn::derive_seed(seed_, 3), static_cast<std::uint64_t>(epoch_ = epoch));
      order_ = shuffled(count, seed), batch_order_ = shuffled(batches, nn::derive_seed(seed, 0));
      std::ranges::stable_sort(order_, {}, [&](std::int64_t i) { return training_inputs_[static_cast<std::size_t>(i)].ids.size(); });
    }
    const std::int64_t first = batch_order_[static_cast<std::size_t>((number - 1) % batches)] * kBatch;
    return {order_.begin() + first, order_.begin() + std::min(first + kBatch, count)};
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

  // The mean of (answer - rating)^2 + cross entropy of sigmoid(2 answer) and the rating's sign / 2; the answers become its gradient.
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

  // The mean of -log(mass of the positive head on the positive part) - log(that of the negative head on the negative part), weighted.
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
  bool studied_ = false;  // by train heads, which keeps no model
  std::vector<TwoSidedText> halves_;
  std::vector<std::int64_t> order_, batch_order_;  // of epoch_
  std::int64_t epoch_ = -1;
  std::vector<double> wanted_;                             // of the batch
  std::vector<std::vector<std::array<bool, 2>>> parts_;    // of each token of the batch: whether it is in the positive, the negative part
  Scores scores_, saved_scores_;                           // of ratings
  Workspace workspace_;  // before saved_, which returns its tensors to it
  models::TextClassifier::Saved saved_;
};

}  // namespace

ClassifiedTexts read_classified_texts(const std::filesystem::path& path) {
  ClassifiedTexts result;
  const auto has_ratings = [&]() -> bool {
    try {
      Data<Rating> data = read_ratings(path);
      if (data.rows.size() < data.bad.size()) return false;
      for (Rating& row : data.rows) result.texts.push_back(std::move(row.text)), result.ratings.push_back(row.rating);
      result.skipped = describe(data.bad, std::ssize(data.rows));
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::format) throw;
      return false;
    }
  };
  if (has_ratings()) return result;
  std::vector<std::string> names;
  const auto bad = read_lines(path, [&](std::string_view line) -> std::string {
    const auto columns = split(line, '\t');
    if (columns.size() != 2 || columns[0].empty() || split_at_white_space(columns[1]).empty()) return "expected: label TAB text";
    names.emplace_back(columns[0]), result.texts.emplace_back(columns[1]);
    return "";
  });
  const std::set<std::string> known(names.begin(), names.end());
  result.labels.assign(known.begin(), known.end());
  require(result.labels.size() > 1 && result.labels.size() <= 1000, path.string(), " has ", counted(result.labels.size(), "label"), "; a classifier needs 2 to 1000");
  for (const std::string& name : names) result.ratings.push_back(static_cast<double>(std::distance(known.begin(), known.find(name))));
  result.skipped = describe(bad, std::ssize(names));
  return result;
}

std::unique_ptr<Task> classification_task(const TaskOptions& options) {
  require(!options.data.empty(), "classify needs --data FILE of lines 'rating TAB text' or 'label TAB text'");
  return std::make_unique<Classification>(options);
}

std::vector<TwoSidedText> two_sided_texts(const TextModel& model, const ClassifiedTexts& data, std::int64_t count, std::uint64_t seed) {
  std::vector<TwoSidedText> texts;
  const Sides sides(model, data, 1, kShortText);
  for (std::int64_t i = 0; sides && i < count; ++i) texts.push_back(sides.draw(data, nn::derive_seed(seed, static_cast<std::uint64_t>(i)), false));
  return texts;
}

Halves score_halves(const TextModel& model, const std::vector<TwoSidedText>& texts) {
  Halves halves{.texts = std::ssize(texts)};
  require(model.classifier.config.heads > kNegativeHead, "halves are read by heads ", kPositiveHead, " and ", kNegativeHead, "; the model has ", counted(model.classifier.config.heads, "head"));
  for (const TwoSidedText& text : texts) {
    const models::ClassifiedText read = models::classify(model, text.text);
    const auto mass = [&](std::int64_t head, ByteSpan part) {
      double sum = 0;
      const std::int64_t length = std::ssize(read.text.spans);
      for (std::int64_t t = 0; t < length; ++t)
        if (inside(read.text.spans[static_cast<std::size_t>(t)], part)) sum += static_cast<double>(read.pooling.data<float>()[head * length + t]);
      return sum;
    };
    const double positive = mass(kPositiveHead, text.positive), negative = mass(kNegativeHead, text.negative);
    halves.both += positive >= kEnoughMass && negative >= kEnoughMass;
    halves.positive += positive / static_cast<double>(texts.size()), halves.negative += negative / static_cast<double>(texts.size());
  }
  return halves;
}

ScoredTexts::ScoredTexts(const TextModel& model, ClassifiedTexts given, const std::function<void(const std::string&)>& note) : data(std::move(given)) {
  const auto known = model.classifier.config.label_list();
  require(known.empty() == data.labels.empty(), "the model answers with ", known.empty() ? "ratings" : "labels", ", but the file has ", data.labels.empty() ? "ratings" : "labels");
  for (double& number : data.ratings) {  // of the model's labels
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
