#include "training/classification.h"

#include <algorithm>
#include <cmath>
#include <limits>
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
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kBatch = 64, kTwoSidedEvery = 3;  // every third step learns from texts with two sides
constexpr double kWordDropout = 0.15, kSideLoss = 1, kValidationShare = 0.1, kEnoughMass = 0.45;
constexpr double kScoresCount = 0.6, kScorePenalty = 5000;  // in the answer, where the heads have the rest; of the ridge regression
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

// Short texts with a clear rating.
struct Sides {
  std::vector<std::size_t> positive, negative;
  Sides(const ClassifiedTexts& data, double least, std::int64_t words) {
    if (!data.labels.empty()) return;
    for (std::size_t i = 0; i < data.texts.size(); ++i)
      if (std::abs(data.ratings[i]) >= least && std::ssize(split_at_white_space(data.texts[i])) <= words) (data.ratings[i] > 0 ? positive : negative).push_back(i);
  }
  explicit operator bool() const { return positive.size() > 1 && negative.size() > 1; }
  TwoSidedText draw(const ClassifiedTexts& data, std::uint64_t seed, bool any_joint) const {
    const auto pick = [&](const std::vector<std::size_t>& list, std::uint64_t number) { return list[nn::derive_seed(seed, number) % list.size()]; };
    return joined(data, pick(positive, 0), pick(negative, 1), kJoints[any_joint ? nn::derive_seed(seed, 2) % kJoints.size() : 0], nn::derive_seed(seed, 3) % 2 == 0);
  }
};

bool inside(ByteSpan token, ByteSpan part) { return token.first >= part.first && token.last <= part.last; }

// The tokens of all texts. Texts with more tokens than the model takes are left out of `data`; the note counts them.
std::vector<Ids> encode_all(const TextModel& model, ClassifiedTexts& data, const std::function<void(const std::string&)>& note) {
  std::vector<Ids> all;
  const std::int64_t longest = model.classifier.config.longest;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < data.texts.size(); ++i) {
    Ids ids = model.tokenizer.encode(data.texts[i]).ids;
    if (std::ssize(ids) > longest) continue;
    all.push_back(std::move(ids));
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
Answers answer(const models::TextClassifier& classifier, const std::vector<Ids>& ids) {
  const Tensor all = Tensor::copy_of(models::classify_all(classifier, ids), DType::f64);
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
    model_.classifier.config = config;  // for encode_all
    training_ids_ = encode_all(model_, training_, options.note), validation_ids_ = encode_all(model_, validation_, options.note);
    require(!training_ids_.empty() && !validation_ids_.empty(), options.data.string(), ": no text has at most ", config.longest, " tokens");
    if (data.labels.empty() && !options.heads) fit_scores(config);
    if (data.labels.empty() || options.heads) config.score_slots = 0;
    model_.classifier = models::TextClassifier(config);
    gradients_ = nn::zeros_like(model_.classifier);
    sides_ = std::make_unique<Sides>(options.heads ? ClassifiedTexts{} : training_, 0.7, kJoinedText);
    if (*sides_) halves_ = two_sided_texts(validation_, kScoredHalves, nn::derive_seed(seed_, 1));
  }

  std::vector<std::string> description() const override {
    const auto& config = model_.classifier.config;
    std::vector<std::string> lines{
        cat(counted(training_.texts.size(), "text"), " to train, ", validation_.texts.size(), " to validate, ", training_.labels.empty() ? "with ratings" : cat("in ", training_.labels.size(), " classes")),
        cat(config.vocabulary, " tokens; ", config.layers, " layers of ", config.heads, " heads, ", config.model_width, " wide")};
    if (training_.labels.empty()) lines.push_back(cat("for comparison, a bag of words and word pairs: ", described(score_bag_of_words(training_, validation_))));
    return lines;
  }
  Plan plan() const override { return {.steps = 3000, .validate_every = 500, .peak_rate = 1e-3, .warmup_steps = 200, .average = 0.99}; }
  nn::NamedParameters parameters() override { return nn::parameters(model_.classifier); }
  nn::NamedParameters gradients() override { return nn::parameters(gradients_); }

  StepResult step(std::int64_t number) override {
    const std::uint64_t of_step = nn::derive_seed(nn::derive_seed(seed_, 2), static_cast<std::uint64_t>(number));
    const bool two_sided = *sides_ && number % kTwoSidedEvery == 0;
    std::vector<Ids> batch;
    wanted_.clear(), parts_.clear();
    if (two_sided) {
      for (std::uint64_t i = 0; i < kBatch; ++i) {
        const TwoSidedText drawn = sides_->draw(training_, nn::derive_seed(of_step, i), true);
        const models::BytePairText tokens = model_.tokenizer.encode(drawn.text);
        batch.push_back(tokens.ids), wanted_.push_back(drawn.rating), parts_.emplace_back();
        for (const ByteSpan& span : tokens.spans) parts_.back().push_back({inside(span, drawn.positive), inside(span, drawn.negative)});
      }
    } else {
      for (const std::size_t i : batch_of(*sides_ ? number - number / kTwoSidedEvery : number)) batch.push_back(training_ids_[i]), wanted_.push_back(training_.ratings[i]);
    }
    return learn(batch, two_sided, of_step);
  }

  Validation validate() override {
    const TextModel whole = with_scores();
    const ClassificationScore result = score(validation_, answer(whole.classifier, validation_ids_));
    if (!validation_.labels.empty()) return {result.accuracy, described(result)};
    std::string text = described(result);
    if (!halves_.empty()) text += cat(", both halves read in ", score_halves(whole, halves_).both, " of ", halves_.size());
    return {result.correlation, text};  // steadier than the other two
  }

  void save(const std::filesystem::path& folder) const override { models::save_text_model(with_scores(), folder); }

 private:
  // The scores of words and pairs are the ridge regression of the ratings on them; those of rare ones count more, as in tf-idf. The heads are
  // trained without the scores, and the answer is a mean of both: trained together, the scores soon know each text by heart.
  void fit_scores(const models::TextClassifierConfig& config) {
    std::vector<double> texts_with(static_cast<std::size_t>(config.score_slots));
    std::vector<std::vector<std::int64_t>> slots;
    for (const Ids& ids : training_ids_) {
      slots.push_back(config.slots(ids));
      for (const std::int64_t slot : std::set(slots.back().begin(), slots.back().end())) texts_with[static_cast<std::size_t>(slot)] += 1;
    }
    const auto value = [&](std::size_t slot) { return 1 + std::log((1 + static_cast<double>(training_ids_.size())) / (1 + texts_with[slot])); };
    std::vector<SparseRow> rows;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      rows.emplace_back();
      for (const std::int64_t slot : slots[i]) rows.back().push_back({static_cast<std::size_t>(slot), config.score_share(std::ssize(training_ids_[i])) * value(static_cast<std::size_t>(slot))});
    }
    const Ridge ridge = fit_ridge(rows, texts_with.size(), training_.ratings, {.penalty = kScorePenalty});
    scores_ = models::TextClassifier(config).scores;
    for (std::size_t slot = 0; slot < texts_with.size(); ++slot) scores_.data<float>()[slot] = static_cast<float>(kScoresCount * ridge.parameters[slot] * value(slot));
    scores_constant_ = kScoresCount * ridge.constant;
  }

  // The model that is validated and saved.
  TextModel with_scores() const {
    TextModel whole = model_;
    if (!scores_) return whole;
    whole.classifier.scores = scores_, whole.classifier.config.score_slots = scores_.numel();
    for (Tensor* part : {&whole.classifier.output.weight, &whole.classifier.output.bias})
      for (float& x : std::span(part->data<float>(), static_cast<std::size_t>(part->numel()))) x *= static_cast<float>(1 - kScoresCount);
    whole.classifier.output.bias.data<float>()[0] += static_cast<float>(scores_constant_);
    return whole;
  }

  // Which texts step `number` takes: of similar lengths, epoch after epoch, each in an order of its own.
  std::vector<std::size_t> batch_of(std::int64_t number) {
    const auto count = std::ssize(training_ids_), batches = (count + kBatch - 1) / kBatch;
    const std::int64_t epoch = (number - 1) / batches;
    if (epoch != epoch_) {
      const std::uint64_t seed = nn::derive_seed(nn::derive_seed(seed_, 3), static_cast<std::uint64_t>(epoch_ = epoch));
      order_ = shuffled(count, seed), batch_order_ = shuffled(batches, nn::derive_seed(seed, 0));
      std::ranges::stable_sort(order_, {}, [&](std::int64_t i) { return training_ids_[static_cast<std::size_t>(i)].size(); });
    }
    const std::int64_t first = batch_order_[static_cast<std::size_t>((number - 1) % batches)] * kBatch;
    return {order_.begin() + first, order_.begin() + std::min(first + kBatch, count)};
  }

  StepResult learn(const std::vector<Ids>& batch, bool two_sided, std::uint64_t of_step) {
    const std::int64_t texts = std::ssize(batch), outputs = model_.classifier.config.outputs();
    std::int64_t longest = 0, tokens = 0;
    Ids lengths;
    for (const Ids& ids : batch) lengths.push_back(std::ssize(ids)), longest = std::max(longest, lengths.back()), tokens += lengths.back();
    Tensor ids(DType::i64, {texts, longest}), answers(DType::f32, {texts, outputs}), segments, d_masses;
    for (std::int64_t b = 0, number = 0; b < texts; ++b)
      for (std::int64_t t = 0; t < lengths[static_cast<std::size_t>(b)]; ++t) {
        const bool kept = uniform(nn::derive_seed(of_step, 1), static_cast<std::uint64_t>(number++)) >= kWordDropout;
        ids.data<std::int64_t>()[b * longest + t] = kept ? batch[static_cast<std::size_t>(b)][static_cast<std::size_t>(t)] : 0;
      }
    if (two_sided) {
      segments = Tensor(DType::f32, {texts, longest, 2}), d_masses = Tensor(DType::f32, {texts, model_.classifier.config.heads, 2});
      for (std::int64_t b = 0; b < texts; ++b)
        for (std::int64_t t = 0; t < lengths[static_cast<std::size_t>(b)]; ++t)
          for (std::int64_t k = 0; k < 2; ++k) segments.data<float>()[(b * longest + t) * 2 + k] = parts_[static_cast<std::size_t>(b)][static_cast<std::size_t>(t)][static_cast<std::size_t>(k)] ? 1 : 0;
    }
    model_.classifier.forward({.ids = ids, .lengths = ConstTensorView(lengths.data(), {texts}), .segments = segments}, answers, saved_, {.mode = nn::Mode::training, .dropout_seed = nn::derive_seed(of_step, 2), .workspace = &workspace_});
    double loss = 0;
    if (outputs > 1) {
      const Ids labels(wanted_.begin(), wanted_.end());
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
  std::vector<Ids> training_ids_, validation_ids_;
  std::unique_ptr<Sides> sides_;
  std::vector<TwoSidedText> halves_;
  std::vector<std::int64_t> order_, batch_order_;  // of epoch_
  std::int64_t epoch_ = -1;
  std::vector<double> wanted_;                             // of the batch
  std::vector<std::vector<std::array<bool, 2>>> parts_;    // of each token of the batch: whether it is in the positive, the negative part
  Tensor scores_;                                          // of ratings, as the answer counts them
  double scores_constant_ = 0;
  Workspace workspace_;  // before saved_, which returns its tensors to it
  models::TextClassifier::Saved saved_;
};

}  // namespace

ClassifiedTexts read_classified_texts(const std::filesystem::path& path) {
  ClassifiedTexts result;
  const auto has_rating = [&]() -> bool {
    try {
      Data<Rating> data = read_ratings(path);
      for (Rating& row : data.rows) result.texts.push_back(std::move(row.text)), result.ratings.push_back(row.rating);
      result.skipped = describe(data.bad, std::ssize(data.rows));
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::format) throw;
      return false;
    }
  };
  if (has_rating()) return result;
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

std::vector<TwoSidedText> two_sided_texts(const ClassifiedTexts& data, std::int64_t count, std::uint64_t seed) {
  std::vector<TwoSidedText> texts;
  const Sides sides(data, 1, kShortText);
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
  ids = encode_all(model, data, note);
  require(!ids.empty(), "there is no text to score");
}

ClassificationScore score_texts(const TextModel& model, const ScoredTexts& texts) { return score(texts.data, answer(model.classifier, texts.ids)); }

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
  const auto& [data, ids] = texts;
  const Answers with = answer(model.classifier, ids);
  const double before = score(data, with).accuracy;
  TextModel changed = model;
  std::vector<WithoutHead> result;
  for (std::int64_t layer = 0; layer <= model.classifier.config.layers; ++layer)
    for (std::int64_t head = 0; head < model.classifier.config.heads; ++head) {
      const auto output = [&](auto& classifier) -> auto& { return layer < classifier.config.layers ? classifier.encoder.layers[static_cast<std::size_t>(layer)].attention.output.weight : classifier.output.weight; };
      Tensor& weight = output(changed.classifier);
      const std::int64_t width = weight.extent(1) / model.classifier.config.heads;
      fill(weight.view().slice(1, head * width, (head + 1) * width), 0);
      const Answers without = answer(changed.classifier, ids);
      WithoutHead row{.layer = layer, .head = head, .accuracy = score(data, without).accuracy - before};
      const auto count = static_cast<double>(ids.size());
      for (std::size_t i = 0; i < ids.size(); ++i)
        row.change += (data.labels.empty() ? std::abs(without.ratings[i] - with.ratings[i]) : static_cast<double>(without.labels[i] != with.labels[i])) / count;
      result.push_back(row);
      copy(output(model.classifier), weight);
    }
  return result;
}

}  // namespace polyhead::training
