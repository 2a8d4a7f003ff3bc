#include "sentiment.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/text.h"
#include "format.h"
#include "json.h"
#include "terminal.h"
#include "text_layout.h"
#include "training/classification.h"

namespace polyhead::app {
namespace {

constexpr std::string_view kNoBreak = "\u00a0";  // no-break space: wrap() keeps a word and its weight on one line

// For example "layer 1, head 3" or "pooling head 1 (trained on negative)"; layers and heads are counted from 0.
std::string head_name(const models::TextClassifierConfig& config, std::int64_t layer, std::int64_t head) {
  if (layer < config.layers) return cat("layer ", layer, ", head ", head);
  const char* const taught = head >= config.taught_heads ? "" : head == training::kPositiveHead ? " (trained on positive)" : head == training::kNegativeHead ? " (trained on negative)" : "";
  return cat("pooling head ", head, taught);
}

struct ReadWord {
  std::string word;
  double weight;
};
// The words to which a pooling head attends most, largest weight first: the fewest words that together have 0.8 of the head's attention.
std::vector<ReadWord> read_words(const models::ClassifiedText& answer, std::string_view text, std::int64_t head) {
  std::vector<ReadWord> words;
  for (std::string& word : answer.text.words_in(text)) words.push_back({std::move(word), 0});
  const float* const weights = answer.pooling.data<float>() + head * answer.pooling.extent(1);
  for (std::size_t t = 0; t < answer.text.words.size(); ++t)
    if (answer.text.words[t] >= 0) words[static_cast<std::size_t>(answer.text.words[t])].weight += static_cast<double>(weights[t]);
  std::ranges::stable_sort(words, std::ranges::greater{}, &ReadWord::weight);
  double sum = 0;
  std::size_t count = 0;
  while (count < words.size() && sum < 0.8) sum += words[count++].weight;
  words.resize(count);
  return words;
}

}  // namespace

void explain_sentiment(const models::TextModel& model, const std::string& input, PageFile page, bool as_json) {
  const models::ClassifiedText answer = models::classify(model, input);
  const models::TextClassifierConfig& config = model.classifier.config;
  const auto labels = config.label_list();
  Json json = Json::object(), heads = Json::array();
  std::string text;
  if (labels.empty()) {
    json["rating"] = answer.rating, json["words_and_pairs"] = answer.score_part;
    const bool known = answer.known_terms > 0;
    if (!known) print_note("the model has scores for no word of this text, so the rating means nothing");
    text = cat("rating ", fixed(answer.rating, 2), !known || answer.rating == 0 ? "\n" : answer.rating > 0 ? " (positive)\n" : " (negative)\n");
  } else {
    const auto best = static_cast<std::size_t>(std::ranges::max_element(answer.probabilities) - answer.probabilities.begin());
    json["label"] = labels[best];
    for (std::size_t c = 0; c < labels.size(); ++c) json["probabilities"][labels[c]] = answer.probabilities[c];
    text = cat(printable(labels[best]), " (probability ", fixed(answer.probabilities[best], 3), ")\n");
  }
  note_replaced_bytes(answer.text.replaced_bytes);
  page.answer = cat(text.substr(0, text.find('\n')), labels.empty() && answer.known_terms == 0 ? ", which means nothing, because the model has scores for no word of this text: " : ": ", input);
  const double constant = static_cast<double>(model.classifier.output.bias.data<float>()[0]);
  if (labels.empty()) {
    page.parts = "to the rating add ";
    for (std::int64_t n = 0; n < config.heads; ++n) append(page.parts, cat(head_name(config, config.layers, n), " ", fixed(answer.head_parts[static_cast<std::size_t>(n)], 2), ", "));
    append(page.parts, cat("words and pairs ", fixed(answer.score_part, 2), ", the constant ", fixed(constant, 2)));
  }
  if (!page.path.empty()) write_page(page, model, input, answer);
  std::vector<std::vector<std::string>> rows;
  for (std::int64_t n = 0; n < config.heads; ++n) {
    std::string words;
    Json head = {{"name", head_name(config, config.layers, n)}};
    if (labels.empty()) head["part"] = answer.head_parts[static_cast<std::size_t>(n)];
    for (const ReadWord& read : read_words(answer, input, n)) {
      words += cat(words.empty() ? "reads " : ", ", read.word, kNoBreak, fixed(read.weight, 2));
      head["words"].push_back({{"word", read.word}, {"weight", read.weight}});
    }
    heads.push_back(head);
    rows.push_back({cat("  ", head_name(config, config.layers, n)), labels.empty() ? fixed(answer.head_parts[static_cast<std::size_t>(n)], 2) : "", words});
  }
  json["heads"] = heads;
  if (labels.empty()) json["constant"] = constant;
  if (as_json) return print_json(json);
  if (labels.empty()) {
    rows.push_back({"  words and pairs", fixed(answer.score_part, 2), "scores of words, word beginnings and word pairs, without attention"});
    rows.push_back({"  constant", fixed(constant, 2), ""});
  }
  // The words that a head reads are wrapped in a separate column.
  std::vector<std::string> lists;
  for (auto& row : rows) lists.push_back(printable(std::exchange(row.back(), {})));
  const std::vector<std::string> heads_and_parts = aligned(rows, 1);
  std::size_t start = 0;
  for (const std::string& line : heads_and_parts) start = std::max(start, columns(trimmed(line)) + 2);
  const std::size_t width = terminal_width(Stream::out);
  if (start > width / 2) start = 4;  // the heads' names take half of the line: let the words begin on the line below
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const std::string head = trimmed(printable(heads_and_parts[i]));
    text += lists[i].empty() ? head + '\n' : hang(head, lists[i], start, width);
  }
  for (std::size_t at = 0; (at = text.find(kNoBreak, at)) != std::string::npos;) text.replace(at, kNoBreak.size(), " ");
  print(text);
}

void score_sentiment(const models::TextModel& model, const SentimentScoring& o) {
  const auto note = [](const std::string& line) { print_note(line); };
  const auto read = [&](const std::string& path) {
    training::ClassifiedTexts data = training::read_classified_texts(path);
    if (!data.skipped.empty()) note(data.skipped);
    return data;
  };
  const training::ScoredTexts texts(model, read(o.data), note);
  const auto add = [&](Json& json, const training::ClassificationScore& score) {
    json["accuracy"] = score.accuracy;
    if (texts.data.labels.empty()) json["correlation"] = score.correlation;
  };
  const training::ClassificationScore score = training::score_texts(model, texts);
  Json json = {{"texts", texts.inputs.size()}, {"counted", score.counted}};
  add(json, score);
  std::string text = cat(training::described(score), " (", counted(texts.inputs.size(), "text"), texts.data.labels.empty() ? cat("; accuracy is for the sign of the ", score.counted, " ratings that are not 0") : "", ")\n");
  if (!o.baseline.empty()) {
    const training::ClassificationScore words = training::score_bag_of_words(read(o.baseline), texts.data);
    add(json["bag_of_words"], words);
    text += cat("bag of words and word pairs: ", training::described(words), "\n");
  }
  constexpr std::int64_t kTwoSided = 200;
  const bool two_heads = model.classifier.config.heads > training::kNegativeHead;
  if (const auto sides = training::two_sided_texts(model, texts.data, kTwoSided, 1); two_heads && !sides.empty()) {
    const training::Halves halves = training::score_halves(model, sides);
    json["halves"] = {{"texts", halves.texts}, {"both", halves.both}, {"positive_mass", halves.positive}, {"negative_mass", halves.negative}};
    text += cat("of ", halves.texts, " texts 'A, but B' made of these texts, ", halves.both, " have each half read by its own head: at least 0.45 of the positive head's attention is on the positive half, and at least 0.45 of the negative head's on the negative half (mean ",
                fixed(halves.positive, 2), " and ", fixed(halves.negative, 2), ")\n");
  }
  if (o.ablate) {
    std::vector<std::vector<std::string>> rows{{"without", texts.data.labels.empty() ? "rating changes by" : "other answers", "accuracy changes by"}};
    for (const training::WithoutHead& row : training::score_without_heads(model, texts)) {
      rows.push_back({head_name(model.classifier.config, row.layer, row.head), fixed(row.change, 3), fixed(row.accuracy, 4)});
      json["without"].push_back({{"head", rows.back()[0]}, {"change", row.change}, {"accuracy_change", row.accuracy}});
    }
    for (const std::string& line : aligned(rows)) text += trimmed(line) + "\n";
  }
  o.json ? print_json(json) : print(text);
}

}  // namespace polyhead::app
