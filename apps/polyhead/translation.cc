#include "translation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "command.h"
#include "core/join.h"
#include "format.h"
#include "json.h"
#include "known_words.h"
#include "polyhead/models/default_models.h"
#include "terminal.h"
#include "text_layout.h"
#include "training/grammar.h"
#include "training/translation.h"

namespace polyhead::app {
namespace {

using models::Translator;
using training::AlignedPair;
using training::AlignedTokens;
using training::Language;

// kGrammarSentences: how many held-out sentences are scored. kShortSentence: a sentence of at most this many words counts as short.
constexpr std::int64_t kGrammarSentences = 2000, kShortSentence = 20;

// The source words that sure links connect with a word of the translation.
std::vector<std::string> linked(const AlignedPair& pair, std::int64_t target) {
  std::vector<std::string> words;
  for (const training::Link& link : pair.links)
    if (link.sure && link.target == target) words.push_back(pair.source[static_cast<std::size_t>(link.source)]);
  return words;
}

ConstTensorView guided_map(const Translator& model, const models::Translation& translation) {
  return translation.attentions.view().select(0, model.config.layers - 1).select(0, model.config.guided_head);
}

std::string word_at(const std::vector<std::string>& words, std::int64_t word) { return word < 0 ? "(no word)" : words[static_cast<std::size_t>(word)]; }

// The pairs that are short enough for the model; a note on stderr gives the number of those that are left out.
std::vector<AlignedTokens> readable(const Translator& model, const std::vector<AlignedPair>& pairs, bool of_grammar) {
  std::vector<AlignedTokens> kept;
  for (const AlignedPair& pair : pairs) {
    AlignedTokens tokens = of_grammar ? training::grammar_tokens(model.tokenizer, pair) : training::aligned_tokens(model.tokenizer, pair);
    if (std::ssize(tokens.source.ids) <= model.config.longest && std::ssize(tokens.target.ids) <= model.config.longest) kept.push_back(std::move(tokens));
  }
  if (kept.size() < pairs.size()) print_note(cat(pairs.size() - kept.size(), " of ", counted(pairs.size(), "sentence"), " are left out: they have more than ", model.config.longest, " tokens"));
  return kept;
}

// Says what "[...]" in a translation means.
std::string meaning_of_marks(const std::vector<std::string>& unknown, const std::vector<std::string>& omitted) {
  std::string text = cat("which does not have ", join(unknown));
  std::vector<std::string> marks;
  for (const std::string& word : unknown)
    if (std::ranges::find(omitted, word) == omitted.end()) marks.push_back("[" + word + "]");
  if (!marks.empty()) text += cat("; ", join(marks), marks.size() == 1 ? " replaces" : " replace", " what the model invents for ", marks.size() == 1 ? "this word" : "these words");
  if (!omitted.empty()) text += cat("; the translation has nothing for ", join(omitted));
  return text;
}

struct Report {
  Json json = Json::object();
  std::string text;
};

void add_alignment(Report& report, const Translator& model, const std::vector<AlignedTokens>& pairs, const training::IbmModel2* ibm, const char* key, const std::string& of) {
  if (pairs.empty()) return;
  const training::AlignmentScore score = training::score_alignment(model, pairs, ibm);
  double best = 1;
  for (const auto& layer : score.heads) best = std::min(best, std::ranges::min(layer));
  Json& json = report.json[key] = {{"sentences", score.sentences}, {"guided", score.guided}, {"best_head", best}, {"diagonal", score.diagonal}, {"heads", score.heads}};
  report.text += cat("alignment error rate of ", counted(score.sentences, "sentence"), of, ": guided head ", fixed(score.guided, 3), ", best head ", fixed(best, 3), ", diagonal ", fixed(score.diagonal, 3));
  if (score.ibm) json["ibm_model_2"] = *score.ibm, report.text += cat(", IBM model 2 ", fixed(*score.ibm, 3));
  report.text += "\n";
}

void add_translations(Report& report, const Translator& model, const std::vector<training::Translations>& sentences, const models::TranslateOptions& options) {
  const training::TranslationScore score = training::score_translations(model, sentences, options.beams);
  if (score.too_long > 0) print_note(cat(counted(score.too_long, "sentence"), " of more than ", model.config.longest, " tokens: counted as not translated"));
  const double exact = static_cast<double>(score.exact) / static_cast<double>(score.sentences);
  report.json.update({{"sentences", score.sentences}, {"beams", options.beams}, {"bleu", score.bleu}, {"exact", exact}});
  report.text += cat("BLEU ", fixed(score.bleu, 2), ", exact ", fixed(exact, 4), " (", counted(score.sentences, "sentence"), ", ", counted(options.beams, "beam"), ")\n");
}

// Reads a file of aligned sentences; absent if its lines have no links.
std::optional<training::Data<AlignedPair>> aligned_pairs(const std::string& path) {
  try {
    return training::read_aligned_pairs(path);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::format) throw;
    return {};
  }
}

template <class Row>
std::vector<Row> rows_of(training::Data<Row> data) {
  if (!data.bad.empty()) print_note(training::describe(data.bad, std::ssize(data.rows)));
  return std::move(data.rows);
}

}  // namespace

void explain_translation(const Translator& model, const std::string& input, const models::TranslateOptions& options, PageFile page, bool as_json) {
  models::Translation answer = models::translate(model, input, options);
  note_replaced_bytes(answer.source.replaced_bytes);
  const std::optional<AlignedPair> known = training::grammar_translation(input);
  std::vector<std::string> unknown;
  if (!known && page.model == models::default_model("grammar").string()) {
    unknown = words_outside_grammar(answer.source.words_in(input));
    if (unknown.empty()) print_note("this is not a sentence of the teaching grammar; the translation is likely wrong");
  }
  const MarkedTranslation marked = mark_unknown_words(answer, input, unknown);
  if (!unknown.empty()) print_note("this is not a sentence of the teaching grammar, " + meaning_of_marks(unknown, marked.omitted));
  const std::string wanted = known ? training::sentence_text(known->target, Language::french) : "";
  const bool linked_by_grammar = known && wanted == answer.text;
  std::vector<std::string> sources = answer.source.words_in(input), targets = answer.target.words_in(answer.text);
  std::vector<std::int64_t> alignment = answer.alignment;
  std::optional<viewer::Links> links;  // the known links, converted from words to tokens
  if (linked_by_grammar) {
    const AlignedTokens tokens = training::grammar_tokens(model.tokenizer, *known);
    sources = known->source, targets = known->target;
    alignment = models::align_words(guided_map(model, answer), tokens.source_words, tokens.target_words, std::ssize(targets));
    links.emplace();
    for (const training::Link& link : known->links)
      for (std::size_t t = 0; t < tokens.target_words.size(); ++t)
        for (std::size_t s = 0; s < tokens.source_words.size(); ++s)
          if (tokens.target_words[t] == link.target && tokens.source_words[s] == link.source) (link.sure ? links->sure : links->possible).emplace_back(t + 1, s);  // t + 1, because row 0 of the map is the start token
  }
  page.answer = marked.text;
  if (!unknown.empty()) page.parts = "trained on the teaching grammar, " + meaning_of_marks(unknown, marked.omitted);
  if (!page.path.empty()) write_page(page, model, input, answer, std::move(links));
  Json json = {{"translation", marked.text}, {"raw_translation", answer.text}, {"complete", answer.complete}, {"unknown", unknown}};
  if (known) json["grammar"] = wanted;
  std::vector<std::vector<std::string>> rows{{"word", "the guided head reads"}};
  if (linked_by_grammar) rows[0].push_back("by the grammar it comes from");
  for (std::size_t j = 0; j < targets.size(); ++j) {
    const std::string read = word_at(sources, alignment[j]);
    rows.push_back({cat("  ", targets[j]), cat(read, marked.invented[j] ? " (unknown: invented)" : "")});
    json["words"].push_back({{"word", targets[j]}, {"read", alignment[j] < 0 ? Json() : Json(sources[static_cast<std::size_t>(alignment[j])])}, {"invented", static_cast<bool>(marked.invented[j])}});
    if (!linked_by_grammar) continue;
    const auto gold = linked(*known, static_cast<std::int64_t>(j));
    rows.back().push_back(join(gold));
    json["words"].back()["grammar"] = gold;
  }
  if (as_json) {
    std::vector<std::string> source = answer.source.pieces, target = answer.target.pieces;  // the names of the columns and rows of the maps
    source.push_back("<end>"), target.insert(target.begin(), "<start>");
    json["source_tokens"] = source, json["target_tokens"] = target;
    json["attentions"] = number_json(answer.attentions);
    return print_json(json);
  }
  std::string text = cat(printable(marked.text), answer.complete ? "\n" : " (cut off)\n");
  if (known && !linked_by_grammar) text += cat("the grammar has: ", wanted, "\n");
  text += "\n";
  for (const std::string& line : aligned(rows)) text += trimmed(printable(line)) + "\n";
  print(text);
}

void score_translation(const Translator& model, const TranslationScoring& o) {
  Report report;
  if (o.data == training::kGrammar) {
    if (!o.baseline.empty()) throw UsageError("--baseline is for a file of aligned sentences; for the grammar, IBM model 2 learns from sentences of the grammar");
    const std::vector<AlignedPair> pairs = training::held_out_sentences(kGrammarSentences);
    std::vector<training::Translations> sentences;
    for (const AlignedPair& pair : pairs) sentences.push_back({training::sentence_text(pair.source, Language::english), {training::sentence_text(pair.target, Language::french)}});
    add_translations(report, model, sentences, o.options);
    const training::IbmModel2 ibm = training::ibm_of_grammar();
    add_alignment(report, model, readable(model, pairs, true), &ibm, "alignment_error_rate", "");
  } else if (auto links = aligned_pairs(o.data)) {
    if (o.options.beams != 1) throw UsageError("--beams is for translations; of aligned sentences only the links are scored");
    std::optional<training::IbmModel2> ibm;
    if (!o.baseline.empty()) ibm = training::ibm_of_pairs(model.tokenizer, rows_of(training::read_pairs(o.baseline)));
    std::vector<AlignedTokens> pairs = readable(model, rows_of(std::move(*links)), false);
    add_alignment(report, model, pairs, ibm ? &*ibm : nullptr, "alignment_error_rate", "");
    std::erase_if(pairs, [](const AlignedTokens& tokens) { return std::ssize(tokens.pair.source) > kShortSentence || std::ssize(tokens.pair.target) > kShortSentence; });
    add_alignment(report, model, pairs, ibm ? &*ibm : nullptr, "alignment_error_rate_short", cat(" of up to ", kShortSentence, " words"));
  } else {
    if (!o.baseline.empty()) throw UsageError(cat("--baseline scores links beside the model's, and the sentences of '", printable(o.data), "' have no links"));
    add_translations(report, model, training::group_by_source(rows_of(training::read_pairs(o.data))), o.options);
  }
  o.json ? print_json(report.json) : print(report.text);
}

}  // namespace polyhead::app
