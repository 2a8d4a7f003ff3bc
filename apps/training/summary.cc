#include "training/summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/text.h"
#include "polyhead/maps.h"
#include "polyhead/nn/seed.h"
#include "training/draw.h"
#include "training/figures.h"
#include "training/order.h"
#include "training/rouge.h"
#include "training/sections.h"
#include "training/summary_baselines.h"

namespace polyhead::training {
namespace {

using models::SentenceChooser;

constexpr std::int64_t kTextsOfAStep = 32;
constexpr double kValidationShareOfTexts = 0.05;
constexpr double kTemperature = 0.1;    // the model learns to give the sentences the probabilities softmax(ROUGE-1 F / kTemperature)
constexpr double kDroppedTerms = 0.5;   // share of the terms of a text that a training step leaves out
constexpr double kDroppedSentences = 0.1;
// A step whose longest text has more sentences than this does not guide heads, because its attention maps would take hundreds of megabytes.
constexpr std::int64_t kMostGuided = 256;
constexpr double kSectionLoss = 0.3;    // weight of the loss that guides a head to a section

struct SummaryExample {
  SentenceChooser::Text text;
  std::vector<double> wanted;     // for each sentence: its ROUGE-1 F as a summary
  std::vector<Section> sections;  // for each sentence its section; empty if the sections are not known
};

std::vector<double> rouge_of_sentences(const Abstract& abstract) {
  std::vector<double> result;
  for (const std::string& sentence : abstract.sentences) result.push_back(rouge_1(sentence, abstract.targets));
  return result;
}

// Drops random sentences and terms, so that the model does not rely on a rare term.
SummaryExample thinned(const SummaryExample& example, std::uint64_t seed) {
  SummaryExample result;
  for (std::size_t s = 0; s < example.text.size(); ++s) {
    const std::uint64_t own = nn::derive_seed(seed, s);
    if (uniform(own, 0) < kDroppedSentences) continue;
    models::SentenceTerms sentence{.slots = {}, .places = example.text[s].places};
    for (std::size_t i = 0; i < example.text[s].slots.size(); ++i)
      if (uniform(own, i + 1) >= kDroppedTerms) sentence.slots.push_back(example.text[s].slots[i]);
    if (sentence.slots.empty()) continue;
    result.text.push_back(std::move(sentence));
    result.wanted.push_back(example.wanted[s]);
    if (!example.sections.empty()) result.sections.push_back(example.sections[s]);
  }
  return result.text.empty() ? example : result;
}

// p = softmax(factor * values)
void softmax(const double* values, std::size_t count, double factor, double* p) {
  const double largest = *std::max_element(values, values + count);
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += p[i] = std::exp((values[i] - largest) * factor);
  for (std::size_t i = 0; i < count; ++i) p[i] /= sum;
}

class Summary final : public Task {
 public:
  explicit Summary(const TaskOptions& options) : seed_(options.seed) {
    Data<Abstract> data = read_abstracts(options.data);
    if (!data.bad.empty()) options.note(describe(data.bad, std::ssize(data.rows)));
    for (Abstract& abstract : data.rows)
      (in_validation(abstract.sentences[0], kValidationShareOfTexts) ? validation_ : training_).push_back(std::move(abstract));
    require(!validation_.empty() && !training_.empty(), options.data.string(), " has ", counted(data.rows.size(), "abstract"), "; ", training_.size(), " to train and ", validation_.size(), " to validate are too few");
    model_ = SentenceChooser({.taught_heads = std::ssize(kSectionNames), .dropout = 0.3, .seed = nn::derive_seed(seed_, 0)});
    gradients_ = nn::zeros_like(model_);
    for (const Abstract& abstract : training_) examples_.push_back({model_.read(abstract.sentences), rouge_of_sentences(abstract), sections_of(abstract.sentences)});
  }

  std::vector<std::string> description() const override {
    std::vector<std::int64_t> first(validation_.size()), cue;
    for (const Abstract& abstract : validation_) cue.push_back(cue_phrase_sentence(abstract.sentences));
    return {cat(training_.size(), " abstracts to train, ", validation_.size(), " to validate: ROUGE-1 of the first sentence ", fixed(mean_rouge_1(validation_, first), 2), ", of the cue phrase ", fixed(mean_rouge_1(validation_, cue), 2)),
            cat(counted(model_.config.layers, "layer"), " of ", model_.config.heads, " heads over sentences, ", model_.config.model_width, " wide; ", model_.config.slots, " slots of terms")};
  }
  // Validates once, at the end: with so few abstracts the best of several validations would be chosen by chance. The large epsilon keeps steps of rare terms small.
  Plan plan() const override { return {.steps = 300, .peak_rate = 3e-3, .warmup_steps = 50, .average = 0.99, .optimizer{.beta2 = 0.98, .epsilon = 1e-3, .weight_decay = 1}}; }
  nn::NamedParameters parameters() override { return nn::parameters(model_); }
  nn::NamedParameters gradients() override { return nn::parameters(gradients_); }

  StepResult step(std::int64_t number) override {
    const std::uint64_t of_step = nn::derive_seed(nn::derive_seed(seed_, 2), static_cast<std::uint64_t>(number));
    std::vector<SentenceChooser::Text> texts;
    std::vector<std::vector<double>> wanted;
    std::vector<std::vector<Section>> sections;
    std::int64_t longest = 0, sentences = 0;
    for (const std::int64_t i : batch_of_step(number, kTextsOfAStep, std::ssize(examples_), nn::derive_seed(seed_, 1))) {
      SummaryExample example = thinned(examples_[static_cast<std::size_t>(i)], nn::derive_seed(of_step, texts.size()));
      longest = std::max(longest, std::ssize(example.text));
      sentences += std::ssize(example.text);
      texts.push_back(std::move(example.text)), wanted.push_back(std::move(example.wanted)), sections.push_back(std::move(example.sections));
    }
    Tensor scores(DType::f32, {kTextsOfAStep, longest});
    model_.forward(texts, scores, saved_, {.mode = nn::Mode::training, .dropout_seed = of_step, .workspace = &workspace_});
    // Cross entropy of p = softmax(scores) with the target q = softmax(ROUGE / kTemperature): d_score = (p - q) / texts.
    double loss = 0;
    for (std::size_t b = 0; b < texts.size(); ++b) {
      const std::size_t count = wanted[b].size();
      float* const row = scores.data<float>() + static_cast<std::int64_t>(b) * longest;
      std::vector<double> p(row, row + count), q(count);
      softmax(p.data(), count, 1, p.data());
      softmax(wanted[b].data(), count, 1 / kTemperature, q.data());
      std::fill_n(row, longest, 0.F);
      for (std::size_t s = 0; s < count; ++s) {
        loss -= q[s] * std::log(p[s]) / kTextsOfAStep;
        row[s] = static_cast<float>((p[s] - q[s]) / kTextsOfAStep);
      }
    }
    std::vector<nn::AttentionWeightsGradient> of_heads;
    if (longest <= kMostGuided) loss += guide(sections);
    for (std::size_t head = 0; longest <= kMostGuided && head < kSectionNames.size(); ++head) of_heads.push_back({.head = static_cast<std::int64_t>(head), .d_p = d_p_.view().select(1, static_cast<std::int64_t>(head))});
    model_.backward(saved_, scores, gradients_, {.workspace = &workspace_}, of_heads);
    return {loss, sentences};
  }

  Validation validate() override {
    const SummaryScores scores = score_summaries(model_, validation_);
    return {scores.model, cat("ROUGE-1 ", fixed(scores.model, 2), " (best sentences ", fixed(scores.best_sentence, 2), ")")};
  }

  void save(const std::filesystem::path& folder) const override { models::save_sentence_chooser(model_, folder); }

 private:
  // Computes the loss that guides the first heads to their sections. Writes its gradient by the attention weights to d_p_.
  double guide(const std::vector<std::vector<Section>>& sections) {
    const nn::MultiHeadAttention::Saved& attention = saved_.encoder.layers[0].attention;
    const std::int64_t heads = std::ssize(kSectionNames), longest = saved_.y.extent(1);
    MapsInput maps = attention.maps();
    maps.q = maps.q.slice(1, 0, heads), maps.k = maps.k.slice(1, 0, heads);
    Tensor p = workspace_.tensor(DType::f32, {std::ssize(sections), heads, longest, longest});
    attention_map(maps, p, attention.sdpa);
    d_p_ = Tensor(DType::f32, p.shape());
    return section_loss(p, sections, kSectionLoss, d_p_);
  }

  std::uint64_t seed_;
  std::vector<Abstract> training_, validation_;
  std::vector<SummaryExample> examples_;
  SentenceChooser model_, gradients_;
  Workspace workspace_;  // declared before saved_: the destructor of saved_ returns tensors to the workspace
  SentenceChooser::Saved saved_;
  Tensor d_p_;  // [texts,sections,S,S]: the gradient of the guiding loss by the attention weights
};

}  // namespace

SummaryScores score_summaries(const SentenceChooser& model, std::span<const Abstract> abstracts) {
  std::vector<std::int64_t> chosen, first(abstracts.size()), cue, best;
  for (const Abstract& abstract : abstracts) {
    chosen.push_back(models::best_sentence(model, abstract.sentences));
    cue.push_back(cue_phrase_sentence(abstract.sentences));
    const std::vector<double> rouge = rouge_of_sentences(abstract);
    best.push_back(std::ranges::max_element(rouge) - rouge.begin());
  }
  return {mean_rouge_1(abstracts, chosen), mean_rouge_1(abstracts, first), mean_rouge_1(abstracts, cue), mean_rouge_1(abstracts, best)};
}

std::unique_ptr<Task> summary_task(const TaskOptions& options) {
  require(!options.data.empty(), "summarise needs --data FILE with a JSON object on each line: `source`, the sentences of an abstract, and `target`, its summaries");
  return std::make_unique<Summary>(options);
}

}  // namespace polyhead::training
