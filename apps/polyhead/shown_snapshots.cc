#include "shown_snapshots.h"

#include <algorithm>
#include <list>
#include <utility>

#include "answer_page.h"
#include "core/text.h"
#include "format.h"
#include "terminal.h"
#include "text_layout.h"
#include "training/digits.h"
#include "try_page.h"

namespace polyhead::app {
namespace {

namespace fs = std::filesystem;

void add_text(viewer::Page& page, std::int64_t step, const AnswerPage& shown, std::string answer, bool is_first) {
  if (is_first) page.start = shown.start, page.model = shown.kind;
  page.texts.push_back(shown.text);
  page.texts.back().snapshot = viewer::Snapshot{.step = step, .answer = std::move(answer)};
}

std::string best_label(const models::TextModel& model, const models::ClassifiedText& answer) {
  const auto labels = model.classifier.config.label_list();
  if (labels.empty()) return cat("rating ", fixed(answer.rating, 2));
  const auto best = std::ranges::max_element(answer.probabilities) - answer.probabilities.begin();
  return cat(labels[static_cast<std::size_t>(best)], " (", fixed(answer.probabilities[static_cast<std::size_t>(best)], 2), ")");
}

std::vector<std::string> or_example(std::vector<std::string> texts, const char* example) {
  if (texts.empty()) texts.emplace_back(example);
  return texts;
}

class Ratings final : public ShownSnapshots {
 public:
  explicit Ratings(std::vector<std::string> texts) : texts_(or_example(std::move(texts), "I am very happy with how it looks, but the manual is too complicated.")) {}
  std::vector<std::string> names() const override { return texts_; }
  std::int64_t weights(const fs::path& folder) const override {
    const models::TextModel model = models::load_text_model(folder);
    std::int64_t count = 0;
    for (const std::string& text : texts_) {
      const models::ClassifiedText answer = models::classify(model, text);
      const AnswerPage page(model, text, answer);
      count += page.text.attentions.numel();
      for (const viewer::Text& tab : page.text.tabs) count += tab.attentions.numel();
    }
    return count;
  }
  void add(viewer::Page& page, std::int64_t step, const fs::path& folder) override {
    const models::TextModel model = models::load_text_model(folder);
    for (const std::string& text : texts_) {
      const models::ClassifiedText& answer = answers_.emplace_back(models::classify(model, text));
      add_text(page, step, pages_.emplace_back(model, text, answer), best_label(model, answer), &text == &texts_.front());
    }
  }

 private:
  std::vector<std::string> texts_;
  std::list<models::ClassifiedText> answers_;
  std::list<AnswerPage> pages_;
};

// The decoder of every snapshot reads the translation of the last snapshot, so that the rows of all maps are the same words.
class Translations final : public ShownSnapshots {
 public:
  Translations(std::vector<std::string> texts, bool guided) : texts_(or_example(std::move(texts), "The small red car is parked outside.")), guided_(guided) {}
  std::vector<std::string> names() const override { return texts_; }
  std::int64_t weights(const fs::path& folder) const override {
    const models::Translator model = models::load_translator(folder);
    std::int64_t count = 0;
    for (const std::string& text : texts_) count += 3 * models::translate(model, text).source_attentions.numel();  // assumes that the translation is as long as the text
    return count;
  }
  bool estimates() const override { return true; }
  void begin(const fs::path& folder) override {
    const models::Translator model = models::load_translator(folder);
    for (const std::string& text : texts_) targets_.push_back(models::translate(model, text));
  }
  void add(viewer::Page& page, std::int64_t step, const fs::path& folder) override {
    const models::Translator model = models::load_translator(folder);
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      const models::Translation& read = answers_.emplace_back(models::read_translation(model, targets_[i].source, targets_[i].target));
      add_text(page, step, pages_.emplace_back(model, texts_[i], read, guided_), models::translate(model, texts_[i]).text, i == 0);
    }
  }

 private:
  std::vector<std::string> texts_;
  bool guided_;
  std::vector<models::Translation> targets_;
  std::list<models::Translation> answers_;
  std::list<AnswerPage> pages_;
};

class Summaries final : public ShownSnapshots {
 public:
  explicit Summaries(std::vector<std::string> texts)
      : texts_(or_example(std::move(texts), "Long texts take time to read. Editors shorten them by hand. We propose a reader that keeps one sentence. Its heads attend from sentence to sentence. Experiments show that editors agree with it.")) {
    for (const std::string& text : texts_) {
      sentences_.push_back(models::split_sentences(text));
      require(sentences_.back().size() > 1, "--text '", clip_words(printable(text), 40), "' has no two sentences of which one could be chosen");
    }
  }
  std::vector<std::string> names() const override { return texts_; }
  std::int64_t weights(const fs::path& folder) const override {
    const models::SentenceChooserConfig c = models::load_sentence_chooser(folder).config;
    std::int64_t count = 0;
    for (const auto& sentences : sentences_) count += c.layers * c.heads * std::ssize(sentences) * std::ssize(sentences);
    return count;
  }
  void add(viewer::Page& page, std::int64_t step, const fs::path& folder) override {
    const models::SentenceChooser model = models::load_sentence_chooser(folder);
    for (const auto& sentences : sentences_) {
      const models::ChosenSentence& answer = answers_.emplace_back(models::choose(model, sentences));
      const auto best = static_cast<std::size_t>(answer.best);
      add_text(page, step, pages_.emplace_back(answer_page(model, sentences, answer)), cat(best, ": ", clip_words(printable(sentences[best]), 80), " (", fixed(answer.scores[best], 2), ")"), &sentences == &sentences_.front());
    }
  }

 private:
  std::vector<std::string> texts_;
  std::vector<std::vector<std::string>> sentences_;
  std::list<models::ChosenSentence> answers_;
  std::list<AnswerPage> pages_;
};

class Digits final : public ShownSnapshots {
 public:
  Digits(std::vector<std::int64_t> numbers, const fs::path& data) : images_(training::read_images(data)), numbers_(std::move(numbers)) {
    const std::int64_t count = std::ssize(images_.labels);
    const bool choose = numbers_.empty();
    for (std::int64_t i = 0; i < count && choose && numbers_.size() < kShown; ++i)
      if (training::validates(i)) numbers_.push_back(i);
    for (const std::int64_t number : numbers_) require(number < count, "--number: there is no image ", number, "; '", data.string(), "' has the images 0 to ", count - 1);
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> result;
    for (const std::int64_t number : numbers_) result.push_back(cat("image ", number, ", a ", images_.labels[static_cast<std::size_t>(number)]));
    return result;
  }
  std::int64_t weights(const fs::path& folder) const override {
    const models::ImageClassifierConfig c = models::load_image_classifier(folder).config;
    const std::int64_t tokens = c.patches() + 1;
    return std::ssize(numbers_) * c.layers * c.heads * tokens * tokens;
  }
  void add(viewer::Page& page, std::int64_t step, const fs::path& folder) override {
    const models::ImageClassifier model = models::load_image_classifier(folder);
    const std::vector<std::string> shown = names();
    for (std::size_t i = 0; i < shown.size(); ++i) {
      const ConstTensorView image = images_.pixels.view().select(0, numbers_[i]);
      const models::ClassifiedImage& answer = answers_.emplace_back(models::classify(model, image));
      add_text(page, step, pages_.emplace_back(answer_page(model, image, shown[i], answer)), best_class(answer), i == 0);
    }
  }

 private:
  static constexpr std::size_t kShown = 3;  // images without --number
  training::Images images_;
  std::vector<std::int64_t> numbers_;
  std::list<models::ClassifiedImage> answers_;
  std::list<AnswerPage> pages_;
};

}  // namespace

std::unique_ptr<ShownSnapshots> show_snapshots(const std::string& task, std::vector<std::string> texts, const std::vector<std::int64_t>& numbers, const fs::path& data, bool guided) {
  if (task == "digits") return std::make_unique<Digits>(numbers, data);
  if (task == "summarise") return std::make_unique<Summaries>(std::move(texts));
  if (task == "translate") return std::make_unique<Translations>(std::move(texts), guided);
  return std::make_unique<Ratings>(std::move(texts));
}

}  // namespace polyhead::app
