#include "view_live.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "core/embed_file.h"
#include "core/join.h"
#include "core/text.h"
#include "format.h"
#include "json.h"
#include "output_path.h"
#include "page_files.h"
#include "page_patterns.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/models/default_models.h"
#include "polyhead/models/image_text_model.h"
#include "polyhead/models/sentence_model.h"
#include "polyhead/models/text_classifier.h"
#include "polyhead/version.h"
#include "temporary_folder.h"
#include "terminal.h"
#include "view_input.h"
#include "view_output.h"

#ifdef POLYHEAD_LIVE_ENGINE
POLYHEAD_EMBED_FILE(polyhead_live_engine, POLYHEAD_LIVE_ENGINE)
#endif

namespace polyhead::app {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file) fail(ErrorCode::io, "cannot read '", path.string(), "'");
  return bytes;
}

std::vector<std::uint8_t> read_engine(const std::string& path) {
  if (path.empty()) {
#ifdef POLYHEAD_LIVE_ENGINE
    return {polyhead_live_engine, polyhead_live_engine_end};
#else
    throw UsageError("--live: this polyhead was built without the engine of live pages, which is a module of WebAssembly. In a clone of polyhead's repository `scripts/live-engine` builds the engine; then give "
                     "--engine build/wasm/apps/live/polyhead_live.wasm.gz");
#endif
  }
  const std::string bytes = read_file(path);
  if (!bytes.starts_with("\x1f\x8b")) throw UsageError(cat("--engine: '", path, "' is not compressed by gzip; `scripts/live-engine` writes polyhead_live.wasm.gz"));
  return {bytes.begin(), bytes.end()};
}

// Limit of a model in a page: DistilBERT (67 MB) fits, BERT-base (110 MB) does not.
constexpr std::size_t kMostBytes = 72'000'000;
constexpr const char *kText = "I am very happy with how it looks, but the manual is too complicated.", *kShortText = "Very nice.";
constexpr std::size_t kScriptBytes = 240'000;  // size of a page's script, style and texts together

[[noreturn]] void refuse_model(const std::string& folder, std::string_view what) {
  fail(ErrorCode::unsupported, "--live: the model in '", folder, "' ", what, "; a live page takes an encoder of BERT's kind (", join(models::encoder_families()), ") of at most ", byte_size(kMostBytes), " as int8");
}

void require_encoder(const std::string& folder) {
  const std::string family = model_type(folder);
  if (is_trained(folder)) refuse_model(folder, cat("was made by `polyhead train` (", family, ")"));
  if (models::image_model_kind(folder)) refuse_model(folder, cat("reads images (", family, ")"));
  const models::TextModelKind kind = models::text_model_kind(folder);
  if (kind == models::TextModelKind::decoder) refuse_model(folder, cat("is a decoder (", family, ")"));
  if (kind == models::TextModelKind::two_sides) refuse_model(folder, cat("has an encoder and a decoder (", family, ")"));
}

std::size_t count_parameters(const models::BertEncoder& encoder) {
  std::int64_t count = 0;
  encoder.visit([&](const std::string&, const Tensor& tensor) { count += tensor.numel(); });
  return static_cast<std::size_t>(count);
}

// Throws an Error if the JSON of a tokenizer splits by a pattern that the engine of live pages does not implement.
void require_patterns(const std::string& folder, const Json& json, const std::string& place) {
  if (json.is_object()) {
    if (const auto found = json.find("Regex"); found != json.end() && found->is_string() && !page_has_pattern(found->get<std::string>()))
      fail(ErrorCode::unsupported, "--live: tokenizer.json in '", folder, "' splits by the pattern ", to_text(*found), " (", place, "), which a live page does not have; it has ", to_text(Json(kPagePatterns)));
    if (json.contains("String") && json["String"] == "")
      fail(ErrorCode::unsupported, "--live: tokenizer.json in '", folder, "' splits by an empty text (", place, "); a live page needs a text of at least one character");
    for (const auto& [key, value] : json.items()) require_patterns(folder, value, cat(place, ".", key));
  }
  if (json.is_array())
    for (const Json& value : json) require_patterns(folder, value, place);
}

void require_tokenizer(const std::string& folder) {
  if (!fs::exists(fs::path(folder) / "tokenizer.json")) return;
  const Json json = Json::parse(read_file(fs::path(folder) / "tokenizer.json"));
  for (const char* part : {"normalizer", "pre_tokenizer", "decoder"})
    if (json.contains(part)) require_patterns(folder, json[part], part);
}

// The model with its parameters in float32, because a live page computes in float32. The model of the page then differs from it only by the rounding to int8.
models::SentenceModel in_float32(const models::SentenceModel& model) {
  models::BertConfig config = model.encoder.config;
  config.dtype = DType::f32;
  std::vector<Tensor> parameters;
  model.encoder.visit([&](const std::string&, const Tensor& tensor) { parameters.push_back(Tensor::copy_of(tensor, DType::f32)); });
  models::SentenceModel exact{.tokenizer = model.tokenizer, .encoder = models::BertEncoder(config, 0)};
  std::size_t i = 0;
  exact.encoder.visit([&](const std::string&, Tensor& tensor) { tensor = parameters[i++]; });
  return exact;
}

// Compares the attention weights and embeddings of the model and of its int8 copy over `text` and four other sentences, of which a model of few positions reads the
// beginning. Error if a result is not finite.
viewer::LiveModel::Rounding measure(const std::string& folder, const models::SentenceModel& given, const models::SentenceModel& rounded, const std::string& text) {
  std::optional<models::SentenceModel> converted;
  if (given.encoder.config.dtype != DType::f32) converted = in_float32(given);
  const models::SentenceModel& exact = converted ? *converted : given;
  viewer::LiveModel::Rounding found;
  double sum = 0, count = 0;
  for (const std::string& sentence : {text, std::string("The quick brown fox jumps over the lazy dog."), std::string("The doctor told the nurse that she would call the patient back on Monday."),
                                      std::string("Who wrote the book that they sold in the small shop behind the station?"), std::string("It was cold, so we stayed at home and read.")}) {
    const auto run = [&](const models::SentenceModel& model) { return model.run(sentence, {.when_too_long = models::WhenTooLong::longest_first}); };
    const models::SentenceResult one = run(exact), other = run(rounded);
    const Tensor a = Tensor::copy_of(one.attentions, DType::f64), b = Tensor::copy_of(other.attentions, DType::f64);
    double apart_of_text = 0;
    for (std::int64_t i = 0; i < a.numel(); ++i) {
      const double apart = std::abs(a.data<double>()[i] - b.data<double>()[i]);
      found.largest = std::max(found.largest, apart), apart_of_text += apart;
    }
    // The embeddings are means over the tokens, scaled to length 1, even if the folder asks for another kind of embedding.
    Tensor u(DType::f64, {exact.encoder.config.width}), v(DType::f64, {exact.encoder.config.width});
    models::sentence_embedding(one.hidden, {}, u), models::sentence_embedding(other.hidden, {}, v);
    const double cosine = std::inner_product(u.data<double>(), u.data<double>() + u.numel(), v.data<double>(), 0.0);
    if (!std::isfinite(apart_of_text + cosine)) fail(ErrorCode::unsupported, "--live: the model in '", folder, "' computes attention weights or embeddings that are not finite");
    sum += apart_of_text, count += static_cast<double>(a.numel());
    found.least_cosine = std::min(found.least_cosine, cosine);
    ++found.texts;
  }
  found.mean = sum / count;
  return found;
}

// Returns whether `polyhead quantise` wrote the folder.
bool is_quantised(const fs::path& folder) {
  return std::ranges::any_of(io::open_tensors(folder).tensors, [](const io::NamedTensor& tensor) { return tensor.tensor.dtype() == DType::i8; });
}

struct PackedModel {
  std::string files;
  viewer::LiveModel::Rounding rounding;
};

// Opens the model. Error if a live page cannot hold it. Called before the engine is read, so that an unsuitable model is reported even if the engine is missing.
models::SentenceModel open_for_page(const std::string& folder) {
  require_encoder(folder);
  models::SentenceModel model = open_model(folder);
  if (const std::size_t parameters = count_parameters(model.encoder); parameters > kMostBytes) refuse_model(folder, cat("has ", parameters, " parameters, ", byte_size(parameters), " as int8"));
  require_tokenizer(folder);
  return model;
}

// Returns the text with which the page opens: `given`, or if `given` is empty, an example that is short enough for the model. Error if the model cannot read `given`.
std::string text_of_page(const models::SentenceModel& model, const std::string& given) {
  std::int64_t length = 0;
  for (const std::string& text : given.empty() ? std::vector<std::string>{kText, kShortText} : std::vector<std::string>{given}) {
    const models::TokenizedText tokens = model.tokenize(text, models::WhenTooLong::longest_first);
    if (tokens.ids.empty()) fail(ErrorCode::invalid_argument, "--live: the text \"", text, "\" has no token for this model; give another --text");
    if (tokens.dropped_tokens == 0) return text;
    length = std::ssize(tokens.ids) + tokens.dropped_tokens;
  }
  fail(ErrorCode::invalid_argument, "--live: the text has ", length, " tokens; the model takes at most ", model.encoder.config.longest(), "; give a shorter --text");
}

// Packs a folder's model for a live page, in the form that the page's WebAssembly module (the engine) reads: matrices as int8 rows, and the tokenizer. Prints
// the size.
PackedModel pack_model(const std::string& folder, const models::SentenceModel& exact, const std::string& text, std::size_t engine_bytes) {
  PackedModel packed;
  live::append_page_file(packed.files, "name", model_name(folder));
  const std::vector<std::string> names = models::quantized_bert_files(folder);
  const auto append_files = [&](const fs::path& from) {
    for (const std::string& name : names) live::append_page_file(packed.files, name, read_file(from / name));
  };
  if (is_quantised(folder)) {
    append_files(folder);
  } else {
    const TemporaryFolder small(names);
    models::quantize_bert(folder, small.path());
    packed.rounding = measure(folder, exact, models::load_bert(small.path()), text);
    append_files(small.path());
  }
  if (packed.files.size() > kMostBytes) refuse_model(folder, cat("has ", byte_size(packed.files.size()), " of files as int8 rows"));
  print_diagnostic(cat("the model in '", folder, "' takes ", byte_size(packed.files.size()), " as int8 rows (", count_parameters(exact.encoder), " parameters); the page is about ", byte_size((packed.files.size() + engine_bytes) / 3 * 4 + kScriptBytes)));
  return packed;
}

}  // namespace

void write_live_page(const LiveOptions& o) {
  if (o.page.empty()) throw UsageError("--live writes a page; give it a file with -o");
  if (o.page != "-") check_writable(o.page);
  check_not_input(o.page, std::array{o.model, o.engine});
  std::string text = o.text.empty() ? kText : o.text;
  std::optional<models::SentenceModel> exact;
  if (o.model.empty()) {
    (void)models::classify(models::load_text_model(models::default_model("sentiment")), text);  // throws the Error that the page would show when it opens
  } else {
    exact = open_for_page(o.model);
    text = text_of_page(*exact, o.text);
  }
  const std::vector<std::uint8_t> engine = read_engine(o.engine);
  viewer::LivePage page{.title = "Your sentence, live", .engine = engine, .version = POLYHEAD_VERSION, .text = text};
  PackedModel packed;
  if (exact) {
    packed = pack_model(o.model, *exact, page.text, engine.size());
    page.model = {.name = model_name(o.model), .files = {reinterpret_cast<const std::uint8_t*>(packed.files.data()), packed.files.size()}, .rounding = packed.rounding};
  }
  page.language = o.language.value_or(viewer::Language::readers);
  write_html(o.page, viewer::render_live(page));
}

}  // namespace polyhead::app
