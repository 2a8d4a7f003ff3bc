#include "train_snapshots.h"

#include <algorithm>
#include <list>
#include <system_error>
#include <utility>

#include "answer_page.h"
#include "arguments.h"
#include "command.h"
#include "core/text.h"
#include "format.h"
#include "polyhead/models/default_models.h"
#include "polyhead/viewer.h"
#include "terminal.h"
#include "view_input.h"
#include "view_output.h"

namespace polyhead::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "snapshots";  // holds a saved model for each step while the run is not complete

// The page of one text at one step. Its views point to the answers, which `kept` holds.
struct Kept {
  std::list<models::ClassifiedText> ratings;
  std::list<models::Translation> translations;
  std::list<AnswerPage> pages;
};

std::string best_label(const models::TextModel& model, const models::ClassifiedText& answer) {
  const auto labels = model.classifier.config.label_list();
  if (labels.empty()) return cat("rating ", fixed(answer.rating, 2));
  const auto best = std::ranges::max_element(answer.probabilities) - answer.probabilities.begin();
  return cat(labels[static_cast<std::size_t>(best)], " (", fixed(answer.probabilities[static_cast<std::size_t>(best)], 2), ")");
}

// Adds the texts of one step. answer_of(text) returns the text's page and the answer in words.
void add_step(viewer::Page& page, std::int64_t step, const std::vector<std::string>& texts, const auto& answer_of) {
  for (const std::string& text : texts) {
    auto [shown, answer] = answer_of(text);
    viewer::Text one = shown->text;
    one.snapshot = viewer::Snapshot{.step = step, .answer = std::move(answer)};
    if (page.start.empty()) page.start = shown->start, page.model = shown->kind;
    page.texts.push_back(std::move(one));
  }
}

}  // namespace

void check_snapshots(const std::string& task, std::int64_t count) {
  if (task != "classify" && task != "translate") throw UsageError(cat("--snapshots shows the maps of texts, and is for the tasks classify and translate, not for ", task));
  if (count < 2) throw UsageError(cat("--snapshots ", count, ": a run needs at least 2, one at its beginning and one at its end"));
}

Snapshots::Snapshots(const std::string& task, std::int64_t count, std::vector<std::string> texts, fs::path folder, std::int64_t steps)
    : task_(task), texts_(std::move(texts)), folder_(std::move(folder)) {
  if (texts_.empty()) texts_.emplace_back(task == "translate" ? "The small red car is parked outside." : "I am very happy with how it looks, but the manual is too complicated.");
  // Steps are closer together at the beginning, where heads change most: step i of n is at (i / n)^2.
  for (std::int64_t i = 0; i < count; ++i) {
    const double part = static_cast<double>(i) / static_cast<double>(count - 1);
    const auto step = static_cast<std::int64_t>(static_cast<double>(steps) * part * part + 0.5);
    if (steps_.empty() || step > steps_.back()) steps_.push_back(step);
  }
}

fs::path Snapshots::place(std::int64_t step) const { return folder_ / kFolder / cat(step); }

void Snapshots::start(const training::Task& task) {
  std::error_code ignored;
  fs::remove_all(folder_ / kFolder, ignored);
  take(0, task);
  try {
    for (const std::string& text : texts_) task_ == "classify" ? void(models::classify(models::load_text_model(place(0)), text)) : void(models::translate(models::load_translator(place(0)), text));
  } catch (...) {
    fs::remove_all(folder_ / kFolder, ignored);
    throw;
  }
}

void Snapshots::take(std::int64_t step, const training::Task& task) {
  if (std::ranges::find(steps_, step) == steps_.end()) return;
  fs::create_directories(place(step));
  task.save(place(step));
}

void Snapshots::write_page() const {
  std::vector<std::int64_t> taken;
  for (const std::int64_t step : steps_)
    if (fs::exists(place(step))) taken.push_back(step);
  if (taken.empty()) return;
  Kept kept;
  viewer::Page page{.title = cat(texts_[0], texts_.size() > 1 ? cat(" (+", texts_.size() - 1, ")") : "")};
  if (task_ == "classify") {
    for (const std::int64_t step : taken) {
      const models::TextModel model = models::load_text_model(place(step));
      add_step(page, step, texts_, [&](const std::string& text) {
        const models::ClassifiedText& answer = kept.ratings.emplace_back(models::classify(model, text));
        return std::pair(&kept.pages.emplace_back(model, text, answer), best_label(model, answer));
      });
    }
  } else {
    // Every step reads the translation of the last step, so that the rows of its maps are the same words.
    const models::Translator last = models::load_translator(place(taken.back()));
    std::vector<models::Translation> targets;
    for (const std::string& text : texts_) targets.push_back(models::translate(last, text));
    for (const std::int64_t step : taken) {
      const models::Translator model = models::load_translator(place(step));
      add_step(page, step, texts_, [&](const std::string& text) {
        const models::Translation& target = targets[static_cast<std::size_t>(std::ranges::find(texts_, text) - texts_.begin())];
        const models::Translation& read = kept.translations.emplace_back(models::read_translation(model, target.source, target.target));
        return std::pair(&kept.pages.emplace_back(model, text, read), models::translate(model, text).text);
      });
    }
  }
  page.model = cat(model_name(folder_), ": ", page.model);
  const fs::path path = folder_ / "learning.html";
  write_html(path.string(), viewer::render(page), cat(counted(static_cast<std::int64_t>(taken.size()), "snapshot"), " of ", counted(static_cast<std::int64_t>(texts_.size()), "text")));
  std::error_code ignored;
  fs::remove_all(folder_ / kFolder, ignored);
}

}  // namespace polyhead::app
