#include "try.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "command.h"
#include "core/text.h"
#include "digits.h"
#include "format.h"
#include "json.h"
#include "output_path.h"
#include "parser.h"
#include "polyhead/models/default_models.h"
#include "sentiment.h"
#include "terminal.h"
#include "text_layout.h"
#include "training/lines.h"
#include "training/sections.h"
#include "training/summary.h"
#include "translation.h"
#include "try_page.h"
#include "view_input.h"

namespace polyhead::app {
namespace {

struct TryOptions {
  std::string task, input, model, score, baseline, page;
  std::optional<std::int64_t> number;
  std::int64_t beams = 1;
  bool ablate = false, json = false;
};

// Throws a UsageError if INPUT, --score and -o do not fit together. has_input: the task has an input even without the argument INPUT.
void require_input(const TryOptions& o, const char* what, bool has_input = false) {
  if (o.input.empty() && o.score.empty() && !has_input) throw UsageError(cat("there is no input; give ", what, ", or --score FILE"));
  if (!o.input.empty() && !o.score.empty()) throw UsageError("an input and --score cannot be combined");
  if (o.page.empty()) return;
  if (o.page == "-") throw UsageError("-o: the answer goes to standard output; give a file for the page");
  if (o.input.empty() && !has_input) throw UsageError("a page shows the answer to an input; -o and --score cannot be combined");
  check_not_input(o.page, std::array{o.model, o.input});
  check_writable(o.page);
}

// The folder given by --model, or the model that is part of the program.
std::filesystem::path model_folder(const TryOptions& o, const char* name) {
  if (!o.model.empty()) return o.model;
  print_note(cat("the model is '", name, "', which is part of polyhead (MODELS.md); --model FOLDER uses another model"));
  return models::default_model(name);
}

void try_digits(const TryOptions& o) {
  const bool examples = o.input.empty() && o.score.empty() && o.model.empty();
  require_input(o, "a PNG or JPEG image of a digit, or a file of images", examples);
  if (!o.score.empty() && o.number) throw UsageError("--number chooses one image to show, and --score scores all of them; they cannot be combined");
  if (!o.score.empty()) return score_digits(models::load_image_classifier(model_folder(o, "digits")), o.score, o.json);
  const GivenDigit digit = read_digit(o.input, o.number);
  const std::filesystem::path folder = model_folder(o, "digits");
  if (examples) print_note("the image is one of those that are part of polyhead, with which its model was not trained; a PNG or JPEG image of a digit may be given instead");
  explain_digit(models::load_image_classifier(folder), digit, {o.page, folder.string()}, o.json);
}

// Refuses a text that would take long to read. Most models read at most a few hundred tokens, so they would refuse such a text later anyway.
void require_short(std::size_t bytes, std::size_t most) {
  if (bytes > most) throw UsageError(cat("the text has ", byte_size(bytes), "; a text of at most ", byte_size(most), " is read"));
}
constexpr std::size_t kBytesOfText = 64'000, kBytesOfReport = 500'000;

// The sentences of a text, or of each line of a file.
std::vector<std::string> sentences_of(const std::string& input) {
  std::error_code ignored;  // set if the text is too long to be the name of a file; is_regular_file() then returns false
  std::vector<InputText> texts{{input, std::nullopt}};
  if (input != "-" && training::split_at_white_space(input).size() == 1 && !std::filesystem::is_regular_file(input, ignored))
    throw UsageError(cat("'", input, "' is no file; as a text it has one word, which cannot be summarised"));
  if (input == "-" || std::filesystem::is_regular_file(input, ignored)) texts = read_texts(input);
  std::vector<std::string> sentences;
  std::size_t bytes = 0;
  for (const InputText& text : texts) bytes += text.text.size();
  require_short(bytes, kBytesOfReport);
  for (const InputText& text : texts)
    for (std::string& sentence : models::split_sentences(text.text)) sentences.push_back(std::move(sentence));
  if (sentences.empty()) throw UsageError("the text is empty");
  return sentences;
}

void try_summary(const TryOptions& o) {
  require_input(o, "a text or a file of one");
  const std::vector<std::string> sentences = o.score.empty() ? sentences_of(o.input) : std::vector<std::string>{};
  const std::filesystem::path folder = model_folder(o, "summary");
  const models::SentenceChooser model = models::load_sentence_chooser(folder);
  if (!o.score.empty()) {
    const training::Data<training::Abstract> data = training::read_abstracts(o.score);
    if (!data.bad.empty()) print_note(training::describe(data.bad, std::ssize(data.rows)));
    const training::SummaryScores scores = training::score_summaries(model, data.rows);
    return o.json ? print_json({{"rouge_1", scores.model}, {"first_sentence", scores.first_sentence}, {"cue_phrase", scores.cue_phrase}, {"best_sentence", scores.best_sentence}, {"abstracts", data.rows.size()}})
                  : print(cat("ROUGE-1 ", fixed(scores.model, 2), " (", counted(data.rows.size(), "abstract"), "); the first sentence ", fixed(scores.first_sentence, 2), ", the cue phrase ", fixed(scores.cue_phrase, 2), ", the best sentence ", fixed(scores.best_sentence, 2), "\n"));
  }
  const models::ChosenSentence answer = models::choose(model, sentences);
  const auto best = static_cast<std::size_t>(answer.best);
  if (!o.page.empty()) write_page({o.page, folder.string(), sentences[best]}, model, sentences, answer);
  if (o.json) return print_json({{"chosen", answer.best}, {"sentence", sentences[best]}, {"sentences", sentences}, {"scores", answer.scores}, {"sections", training::sections_of_heads(model.config.taught_heads)}, {"attentions", number_json(answer.attentions)}});
  std::vector<std::vector<std::string>> rows;
  for (std::size_t s = 0; s < sentences.size(); ++s) rows.push_back({cat(s == best ? "> " : "  ", s), fixed(answer.scores[s], 2), clip_words(printable(sentences[s]), 100)});
  std::string text = cat(printable(sentences[best]), "\n\nscores of the sentences:\n");
  for (const std::string& line : aligned(rows)) text += line + '\n';
  // The attention that each sentence receives, as a mean over the queries.
  rows = {{"each head's attention to sentence"}};
  const auto count = std::ssize(sentences);
  for (std::int64_t s = 0; s < count; ++s) rows[0].push_back(cat(s));
  const std::vector<std::string> taught = training::sections_of_heads(model.config.taught_heads);
  const float* p = answer.attentions.data<float>();
  for (std::int64_t map = 0; map < model.config.layers * model.config.heads; ++map, p += count * count) {
    rows.push_back({cat("layer ", map / model.config.heads, ", head ", map % model.config.heads, map < std::ssize(taught) ? cat(" (trained on ", taught[static_cast<std::size_t>(map)], ")") : "")});
    for (std::int64_t s = 0; s < count; ++s) {
      double sum = 0;
      for (std::int64_t t = 0; t < count; ++t) sum += static_cast<double>(p[t * count + s]);
      rows.back().push_back(fixed(sum / static_cast<double>(count), 2));
    }
  }
  text += '\n';
  for (const std::string& line : aligned(rows)) text += line + '\n';
  print(text);
}

// The text of an argument: the argument itself, or for "-" the only line of standard input.
std::string text_of(const std::string& input) {
  std::error_code ignored;  // set if the text is too long to be the name of a file; is_regular_file() then returns false
  if (input != "-") {
    require_short(input.size(), kBytesOfText);
    if (training::split_at_white_space(input).empty()) throw UsageError("the text is empty");
    if (std::filesystem::is_regular_file(input, ignored)) print_note(cat("'", input, "' is read as a text, not as the file of this name"));
    return input;
  }
  const std::vector<InputText> texts = read_texts(input);
  if (texts.size() != 1) throw UsageError(cat("standard input has ", texts.size(), " lines; give one text, or --score FILE for many"));
  require_short(texts[0].text.size(), kBytesOfText);
  return texts[0].text;
}

void try_sentiment(const TryOptions& o) {
  require_input(o, "a text");
  if (o.score.empty() && (o.ablate || !o.baseline.empty())) throw UsageError("--ablate and --baseline need --score FILE");
  const std::string text = o.score.empty() ? text_of(o.input) : "";
  const std::filesystem::path folder = model_folder(o, "sentiment");
  const models::TextModel model = models::load_text_model(folder);
  o.score.empty() ? explain_sentiment(model, text, {o.page, folder.string()}, o.json) : score_sentiment(model, {o.score, o.baseline, o.ablate, o.json});
}

void try_translation(const TryOptions& o) {
  require_input(o, "a text");
  if (o.score.empty() && !o.baseline.empty()) throw UsageError("--baseline needs --score FILE");
  const std::string text = o.score.empty() ? text_of(o.input) : "";
  const std::filesystem::path folder = model_folder(o, "grammar");
  const models::Translator model = models::load_translator(folder);
  const models::TranslateOptions options{.beams = o.beams};
  o.score.empty() ? explain_translation(model, text, options, {o.page, folder.string()}, o.json) : score_translation(model, {o.score, o.baseline, options, o.json});
}

struct TriedTask {
  std::string name;
  std::string_view model_type;
  std::vector<std::string> options;  // the options that this task has and other tasks lack
  void (*run)(const TryOptions&);
};

const std::array kTriedTasks{
    TriedTask{"sentiment", models::TextClassifierConfig::kModelType, {"--baseline", "--ablate"}, try_sentiment},
    TriedTask{"digits", models::ImageClassifierConfig::kModelType, {"--number"}, try_digits},
    TriedTask{"summarise", models::SentenceChooserConfig::kModelType, {}, try_summary},
    TriedTask{"translate", models::TranslatorConfig::kModelType, {"--baseline", "--beams"}, try_translation},
};

// The task of a folder's model; nullptr if `polyhead train` did not make it.
const TriedTask* task_of(const std::filesystem::path& folder) {
  const auto found = std::ranges::find(kTriedTasks, model_type(folder), &TriedTask::model_type);
  return found == kTriedTasks.end() ? nullptr : found;
}

// Refuses options that the task would ignore.
void check_options(const TriedTask& task, const std::vector<Option*>& options) {
  for (const Option* option : options) {
    if (!option->is_given() || std::ranges::count(task.options, option->name()) > 0) continue;
    std::string takers;
    for (const TriedTask& other : kTriedTasks)
      if (std::ranges::count(other.options, option->name()) > 0) takers += (takers.empty() ? "" : " and ") + other.name;
    throw UsageError(cat(option->name(), " is an option of ", takers, ", not of ", task.name));
  }
}

}  // namespace

void try_text(const TriedText& given) {
  const TriedTask* const found = given.model.empty() ? nullptr : task_of(given.model);
  TryOptions options;
  options.input = given.text, options.model = given.model.string(), options.page = given.page, options.json = given.json;
  (found != nullptr ? *found : kTriedTasks[0]).run(options);
}

Subcommand declare_try(Parser& parser) {
  const auto o = std::make_shared<TryOptions>();
  parser.add_option("TASK", o->task, "sentiment, translate, summarise or digits")->required();
  parser.add_option("INPUT", o->input, "the text, or - for standard input; for summarise also a file; for digits a PNG or JPEG image, or a file of several images; without it an image that is part of polyhead");
  parser.add_option("--model", o->model, "folder that `polyhead train` made; default: the model that is part of polyhead")->type_name("FOLDER");
  parser.add_option("--score", o->score, "examples with known answers, in the format of `polyhead train --data`; translate: also aligned sentences, or the word grammar; digits: also the word examples, for the images that are part of polyhead")->type_name("FILE");
  std::vector<Option*> own;
  own.push_back(add_value(parser, "--number", &o->number, read_count, "N", "digits: which image of the file, or of those that are part of polyhead, from 0"));
  own.push_back(parser.add_option("--baseline", o->baseline, "score a bag of words (sentiment) or IBM model 2 (links of translate) beside the model; it learns from these examples")->type_name("FILE"));
  own.push_back(add_value(parser, "--beams", &o->beams, read_positive, "N", "translate: the width of the beam search; default 1: the likeliest token at each step"));
  parser.add_option("-o,--output", o->page, "write one HTML page with the input, the answer and the attention weights of all heads")->type_name("PATH");
  own.push_back(parser.add_flag("--ablate", o->ablate, "sentiment: score the model without each head"));
  parser.add_flag("--json", o->json, "machine-readable, one object on one line");
  return {
      .examples = {{"polyhead try sentiment \"Nice screen, but far too heavy.\"", "the rating, and which words each head reads"},
                   {"polyhead try digits --number 3", "which digit the image shows, and where the model looks"},
                   {"polyhead try digits drawing.png -o digit.html", "a digit that you drew, beside its patches, and where each head looks"},
                   {"polyhead try digits --score examples", "accuracy on images that training has not seen"},
                   {"polyhead try translate \"The small red car is parked outside.\"", "the translation, and where each of its words comes from"},
                   {"polyhead try translate --score grammar", "how many held-out sentences are translated exactly, and how well the heads align words"},
                   {"polyhead try summarise abstract.txt", "the sentence that sums up the abstract, and which sentences each head reads"}},
      .notes = "JSON: sentiment {rating, words_and_pairs, heads: [{name, part, words}], constant} or {label, probabilities, heads}; translate {translation, "
               "raw_translation, complete, unknown, words: [{word, read, invented}], source_tokens, target_tokens, attentions [layers][heads][target][source]}; summarise {chosen, sentence, "
               "sentences, scores, sections, attentions}; digits {class, label, probabilities, attentions}, for a PNG or JPEG image without label; with --score the scores.\n",
      .run =
          [o, own] {
            std::vector<std::string> names;
            for (const TriedTask& task : kTriedTasks) names.push_back(task.name);
            const std::string name = read_choice(o->task, "task", names);
            const TriedTask& task = *std::ranges::find(kTriedTasks, name, &TriedTask::name);
            check_options(task, own);
            if (const TriedTask* const other = o->model.empty() ? nullptr : task_of(o->model); other != nullptr && other != &task)
              fail(ErrorCode::unsupported, "'", o->model, "' is a model for ", other->name, "; try it with 'polyhead try ", other->name, "'");
            task.run(*o);
          },
  };
}

}  // namespace polyhead::app
