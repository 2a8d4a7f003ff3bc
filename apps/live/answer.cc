#include "answer.h"

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "answer_page.h"  // a header of apps/polyhead
#include "core/text.h"
#include "io/file_bytes.h"
#include "known_words.h"  // a header of apps/polyhead
#include "polyhead/models/any_text_model.h"
#include "polyhead/models/default_models.h"
#include "polyhead/models/sentence_model.h"
#include "polyhead/models/text_classifier.h"
#include "polyhead/models/translator.h"
#include "run_page.h"  // a header of apps/polyhead
#include "viewer/live_answer.h"

namespace polyhead::live {
namespace {

using Json = nlohmann::json;

template <class Model, class Answer>
std::string page_of(const char* name, const Model& model, const std::string& text, const Answer& answer, const Json& told) {
  const app::AnswerPage shown(model, text, answer);
  viewer::Page page{.title = {}, .model = cat(name, ": ", shown.kind), .texts = {shown.text}, .start = shown.start};
  page.vector_megabytes = 64;
  return viewer::live_answer(page, told.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// Returns the answer for a text without a token or with too many tokens, and nullopt for any other text. Call it before the model: the model throws an Error
// for a text that this function refuses, and an Error ends the module of a page.
std::optional<std::string> refusal(std::int64_t tokens, std::int64_t longest) {
  if (tokens >= 1 && tokens <= longest) return std::nullopt;
  const std::string why = tokens == 0 ? "the text has no token" : cat("the text has ", tokens, " tokens; the model takes at most ", longest);
  return Json{{"error", why}, {"tokens", tokens}, {"longest", longest}}.dump();
}

std::string rate(const std::string& text) {
  static const models::TextModel model = models::load_text_model(models::default_model("sentiment"));
  if (const auto refused = refusal(std::ssize(model.tokenizer.encode(text).ids), model.classifier.config.longest)) return *refused;
  const models::ClassifiedText answer = models::classify(model, text);
  Json told{{"task", "sentiment"}, {"unknown", app::words_without_score(model, answer.text.words_in(text))}, {"rating", answer.rating}, {"parts", answer.head_parts}, {"score_part", answer.score_part},
            {"known_terms", answer.known_terms}};
  return page_of("sentiment", model, text, answer, told);
}

std::string translate(const std::string& text) {
  static const models::Translator model = models::load_translator(models::default_model("grammar"));
  if (const auto refused = refusal(std::ssize(model.tokenizer.encode(text).ids), model.config.longest)) return *refused;
  const models::Translation answer = models::translate(model, text);
  const std::vector<std::string> sources = answer.source.words_in(text), targets = answer.target.words_in(answer.text);
  const std::vector<std::string> unknown = app::words_outside_grammar(sources);
  const app::MarkedTranslation marked = app::mark_unknown_words(answer, text, unknown);
  Json told{{"task", "translate"}, {"unknown", unknown}, {"omitted", marked.omitted}, {"translation", marked.text}, {"raw_translation", answer.text}, {"complete", answer.complete}, {"alignment", Json::array()}};
  for (std::size_t j = 0; j < targets.size(); ++j)
    told["alignment"].push_back({targets[j], answer.alignment[j] < 0 ? Json() : Json(sources[static_cast<std::size_t>(answer.alignment[j])])});
  return page_of("grammar", model, text, answer, told);
}

// If all heads together have more attention weights than this for a text, the page shows pooled maps. MiniLM's 72 heads exceed this number from 171 tokens on.
constexpr std::int64_t kMostWeights = std::int64_t{1} << 21;

struct Encoder {
  std::string name;
  models::SentenceModel model;
  Workspace workspace{Parameters::constant};
};
std::unique_ptr<Encoder> encoder;

std::string read(const std::string& text) {
  require(encoder != nullptr, "live: the task 'model' needs a page that holds an encoder, and this page holds none");
  const models::BertConfig& config = encoder->model.encoder.config;
  models::TokenizedText tokens = encoder->model.tokenizer.encode(text);
  const std::int64_t length = std::ssize(tokens.ids);
  if (const auto refused = refusal(length, config.longest())) return *refused;
  const std::int64_t blocks = viewer::pooled_sides(std::array{length}, config.layers * config.heads, kMostWeights)[0];
  const models::TextRun run{encoder->model.run(std::move(tokens), {.attentions = blocks == 0, .pooled = blocks, .head_vectors = blocks == 0, .value_norms = blocks == 0, .workspace = &encoder->workspace})};
  viewer::Page page{.title = {}, .model = encoder->name, .texts = {app::page_text(text, run, {}, 0)}};
  page.vector_megabytes = 64;
  return viewer::live_answer(page, Json{{"task", "model"}, {"unknown", Json::array()}, {"tokens", length}}.dump());
}

}  // namespace

void open_model(const std::filesystem::path& folder) {
  const std::filesystem::path name = folder / "name";
  encoder = std::make_unique<Encoder>(Encoder{.name = io::file_exists(name) ? std::string(io::read_file(name).text()) : folder.filename().string(), .model = models::load_bert(folder)});
}

std::string answer(const std::string& task, const std::string& text) {
  if (task == "sentiment") return rate(text);
  if (task == "translate") return translate(text);
  if (task == "model") return read(text);
  fail(ErrorCode::invalid_argument, "live: there is no task '", task, "'; the tasks are sentiment, translate and model");
}

}  // namespace polyhead::live
