#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments.h"
#include "core/join.h"
#include "format.h"
#include "heatmap.h"
#include "json.h"
#include "measure_texts.h"
#include "output_path.h"
#include "parser.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/models/any_text_model.h"
#include "polyhead/viewer.h"
#include "run_page.h"
#include "terminal.h"
#include "text_layout.h"
#include "try.h"
#include "view_head.h"
#include "view_image.h"
#include "view_input.h"
#include "view_link.h"
#include "view_live.h"
#include "view_measures.h"
#include "view_output.h"

namespace polyhead::app {
namespace {

// Refuses wrong combinations of options and unwritable outputs before any input is read.
void check(ViewOptions& o) {
  if (!o.source.empty() && !o.file.empty())
    throw UsageError(cat("texts are given twice, in '", o.source, "' and with --file '", o.file, "'; give them once"));
  if (o.file.empty()) o.file = o.source;
  if (!o.images.empty()) {
    if (!o.file.empty() || o.pair || o.texts.size() > 1) throw UsageError("--image can be combined with one --text only: a model with an image encoder and a text encoder (CLIP, SigLIP) compares this text with each image. For several texts run the command once for each text, or leave out --image");
    if (o.model.empty()) throw UsageError("--image needs MODEL_DIR, a folder of a model of images such as ViT or CLIP");
    if (!o.without.empty() || o.generate > 0 || o.truncate || !o.measured.empty()) throw UsageError("--without, --generate, --truncate and --texts are for texts");
  }
  if (!o.measured.empty() && o.generate > 0) throw UsageError("--texts measures heads on the given texts; it cannot be combined with --generate");
  if (o.measured == "-" && o.file == "-") throw UsageError("--texts - and --file - would both read standard input");
  if (o.images.empty() && o.texts.empty() && o.file.empty() && o.measured.empty()) throw UsageError("there is no text; give --text \"...\", --file PATH, or - for standard input");
  if (const bool shows_map = !o.texts.empty() || !o.file.empty() || !o.page.empty() || !o.arrays.empty() || o.link; !o.measured.empty() && !shows_map) {
    const char* const unused = !o.without.empty() ? "--without" : o.layer ? "--layer" : o.head ? "--head" : o.mean ? "--mean" : o.by_norms ? "--weighting norm" : nullptr;
    if (unused != nullptr) throw UsageError(cat(unused, " is about a map that is shown, and --texts alone shows none; it needs --text, --file, -o or --arrays"));
  }
  if (!o.texts.empty() && !o.file.empty())
    throw UsageError(cat("texts are given twice, with --text and in '", o.file, "'; give them once"));
  if (o.pair && o.texts.size() != 1) throw UsageError("--text-pair is the second part of one text; it needs exactly one --text");
  if (o.link && (o.texts.size() > 1 || !o.images.empty())) throw UsageError("--link is for two words of one text");
  if (o.link && (o.layer || o.head || o.mean)) throw UsageError("--link ranks all heads; it cannot be combined with --layer, --head or --mean");
  if (o.link && o.by_norms) throw UsageError("--link ranks heads by their attention weights; it cannot be combined with --weighting norm");
  if (o.head && o.mean) throw UsageError("--mean cannot be combined with --head");
  if (o.language && o.page.empty()) throw UsageError("--lang is the language of the page; it needs -o");
  if (o.vector_megabytes && o.page.empty()) throw UsageError("--vector-megabytes is a size of the page; it needs -o");
  if (o.page == "-" && o.json) throw UsageError("-o - and --json would both write to standard output");
  if (!o.arrays.empty()) check_tensor_format("--arrays", o.arrays);
  check_distinct(o.page, o.arrays);
  for (const std::string& output : {o.page, o.arrays}) {
    if (output == "-") continue;
    check_not_input(output, std::array{o.model, o.file, o.measured});
    check_not_input(output, o.images);
  }
  if (!o.page.empty() && o.page != "-") check_writable(o.page);
  if (!o.arrays.empty()) check_writable(o.arrays);
}

Json to_json(const InputText& input, const models::TextRun& result, const Tensor& map) {
  const models::TokenizedText& tokens = result.tokens;
  Json json{{"text", input.text},
          {"pair", input.pair ? Json(*input.pair) : Json(nullptr)},
          {"tokens", tokens.pieces},
          {"ids", tokens.ids},
          {"segments", tokens.segments},
          {"special", tokens.special},
          {"replaced_bytes", tokens.replaced_bytes},
          {"dropped_tokens", tokens.dropped_tokens},
          {"map", number_json(map)}};
  if (result.embedding) json["embedding"] = number_json(result.embedding);
  if (result.target) json["target_tokens"] = result.target->tokens.pieces, json["target_ids"] = result.target->tokens.ids;
  if (result.generated) json["generated"] = *result.generated;
  return json;
}

Json to_json(const std::vector<viewer::WithoutHead>& without) {
  Json list = Json::array();
  for (const viewer::WithoutHead& one : without) list.push_back({{"layer", one.layer}, {"head", one.head}, {"change", one.change}});
  return list;
}

viewer::Language read_language(const std::string& word) {
  static const std::array<std::string, 2> kNames{"en", "zh"};
  return read_choice(word, "language", kNames) == "zh" ? viewer::Language::chinese : viewer::Language::english;
}

// Reads the heads given as "LAYER.HEAD" or "all". A head that is given twice occurs once in the result.
std::vector<std::pair<std::int64_t, std::int64_t>> read_heads(const std::vector<std::string>& words, const models::AnyTextModel::Sizes& sizes) {
  std::vector<std::pair<std::int64_t, std::int64_t>> heads;
  const auto add = [&](std::int64_t layer, std::int64_t head) {
    if (std::ranges::find(heads, std::pair(layer, head)) == heads.end()) heads.emplace_back(layer, head);
  };
  for (const std::string& word : words) {
    if (word == "all") {
      for (std::int64_t layer = 0; layer < sizes.layers; ++layer)
        for (std::int64_t head = 0; head < sizes.heads; ++head) add(layer, head);
      continue;
    }
    const std::size_t dot = std::min(word.find('.'), word.size());
    const auto layer = parse<std::int64_t>(std::string_view(word).substr(0, dot));
    const auto head = parse<std::int64_t>(std::string_view(word).substr(std::min(dot + 1, word.size())));
    if (!layer || !head) throw UsageError(cat("--without: '", word, "' is not LAYER.HEAD, such as 2.8, nor all"));
    if (*layer < 0 || *layer >= sizes.layers || *head < 0 || *head >= sizes.heads)
      throw UsageError(cat("--without: there is no head ", word, "; the model has the layers 0 to ", sizes.layers - 1, ", each with the heads 0 to ", sizes.heads - 1));
    add(*layer, *head);
  }
  return heads;
}

// The line above a map. largest: the largest element of a norm-weighted map, as text; empty for a map of attention weights.
std::string heading(const InputText& input, const HeadChoice& choice, const std::string& largest, std::size_t width) {
  const std::string what = largest.empty() ? std::string("rows attend to columns, in percent") : cat("rows attend to columns: ", kNormWeighted, ", in percent of the largest, ", largest);
  return cat(clip(printable(input.both()), width), "\n", wrap(cat(choice.description(), "; ", what), width), "\n");
}

using Kind = models::TextModelKind;

class View {
 public:
  explicit View(ViewOptions options) : o_(std::move(options)) {}

  void run() {
    check(o_);
    read();
    const bool keep = !o_.page.empty() || !o_.arrays.empty();
    const bool draw = o_.page.empty() && !o_.json;
    viewer::VectorBudget budget(o_.vector_megabytes.value_or(viewer::Page().vector_megabytes));
    Progress progress("texts", texts_.size());
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      progress.show(i);
      const std::int64_t numbers = model_->sizes().head_vectors * (std::ssize(tokens_[i].ids) + o_.generate);  // how many numbers q, k and v of all heads have
      const std::int64_t blocks = blocks_[i];
      const bool fits = !o_.page.empty() && blocks == 0 && budget.take(numbers);
      models::TextRun result = model_->run(std::move(tokens_[i]), {.attentions = needs_every_pair(i), .pooled = blocks, .head_vectors = fits, .value_norms = has_norms(i), .generate = o_.generate});
      left_out_.push_back(fits || blocks != 0 ? 0 : numbers);
      if (o_.link) link_words(result);
      const HeadChoice choice = draw && !o_.layer && !o_.head && !o_.mean ? telling_head_of(result) : choice_;
      const Tensor map = draw || o_.json ? chosen_map(result.target ? result.target->cross_attentions : result.attentions, o_.by_norms ? result.value_norms.view() : ConstTensorView(), choice) : Tensor();
      const std::vector<viewer::WithoutHead> without = changes_without(result);
      if (draw) {
        progress.clear();
        if (result.generated) print(cat(wrap(cat(i > 0 ? "\n" : "", "generated: ", printable(*result.generated)), terminal_width(Stream::out)), "\n"));
        const std::vector<std::string> words = model_->sizes().kind == Kind::encoder ? result.tokens.pieces : words_of(texts_[i].text, result.tokens);
        const std::vector<std::string> rows = result.target ? words_of("", result.target->tokens) : words;
        if (link_) print(cat(clip(printable(texts_[i].both()), terminal_width(Stream::out)), "\n", describe(*link_, rows, words, terminal_width(Stream::out))));
        else draw_map(i, choice, rows, words, map);
        for (const viewer::WithoutHead& one : without) print(wrap(cat("without head ", one.layer, ".", one.head, ": the embedding changes by ", fixed(one.change, 6), " (1 - cosine)"), terminal_width(Stream::out)));
      }
      if (o_.json) json_texts_.push_back(to_json(texts_[i], result, map));
      if (o_.json && link_) json_texts_.back()["link"] = app::to_json(*link_);
      if (o_.json && !without.empty()) json_texts_.back()["without"] = to_json(without);
      without_.push_back(without);
      if (keep) results_.push_back(std::move(result));
    }
    progress.clear();
    measure();
    write();
  }

 private:
  void read() {
    if (!o_.measured.empty()) measured_texts_ = read_texts(o_.measured);
    if (!o_.file.empty()) {
      texts_ = read_texts(o_.file);
    } else if (!o_.texts.empty()) {
      for (const std::string& text : o_.texts) texts_.push_back({text, o_.pair});
    } else if (!o_.page.empty() || !o_.arrays.empty() || o_.link) {
      texts_.push_back(measured_texts_[0]);  // show the first text of --texts: the page, the arrays and --link need the maps of one text
    }
    if (o_.link && texts_.size() > 1) throw UsageError(cat("--link is for two words of one text; '", o_.file, "' has ", texts_.size()));
    model_ = open_any_model(o_.model);
    const models::AnyTextModel::Sizes& sizes = model_->sizes();
    const bool of_target = sizes.kind == Kind::two_sides && o_.generate > 0;
    choice_ = choose_head(o_.layer, o_.head, o_.mean, of_target ? sizes.target_layers : sizes.layers, of_target ? sizes.target_heads : sizes.heads);
    if (o_.by_norms && sizes.kind == Kind::two_sides) fail(ErrorCode::unsupported, "--weighting norm: '", o_.model, "' is an encoder-decoder model, and polyhead keeps no values of such models; encoders and decoders have norm-weighted maps");
    heads_off_ = read_heads(o_.without, sizes);
    if (!heads_off_.empty() && sizes.kind != Kind::encoder) throw UsageError("--without compares embeddings of texts, which this model does not have");
    if (!sizes.other_embedding.empty() && (o_.json || !o_.arrays.empty()))
      print_note(cat("there is no embedding: ", sizes.other_embedding, "; polyhead computes embeddings by the mean over the tokens alone"));
    if (o_.generate > 0 && sizes.kind == Kind::encoder) throw UsageError("--generate is for models that predict the next token; this one is an encoder");
    if (o_.pair && sizes.kind != Kind::encoder) throw UsageError("--text-pair is for encoders; this model reads one text");
    if (o_.generate > 0 && !sizes.rules_not_followed.empty())
      print_note(cat("each generated token is the likeliest one; polyhead ignores these rules of generation_config.json (or of config.json, if there is no generation_config.json): ", join(sizes.rules_not_followed)));
    const auto tokenizer = [&](const InputText& text) { return model_->tokenize(text.text, text.pair, models::WhenTooLong::longest_first, o_.generate); };
    const auto longest = sizes.longest ? std::optional(*sizes.longest - (sizes.kind == Kind::decoder ? o_.generate : 0)) : std::nullopt;
    tokens_ = tokenize(tokenizer, longest, texts_, o_.truncate);
    measured_tokens_ = tokenize(tokenizer, longest, measured_texts_, o_.truncate, "--truncate leaves out the end", "--texts");
    check_sizes();
  }

  void measure() {
    if (measured_tokens_.empty()) return;
    Progress progress("texts measured", measured_tokens_.size());
    measured_ = measure_texts(*model_, std::move(measured_tokens_), [&](std::size_t i) { progress.show(i); });
    progress.clear();
    if (o_.page.empty() && !o_.json) print(cat(texts_.empty() ? "" : "\n", describe(*measured_, terminal_width(Stream::out))));
  }

  std::vector<viewer::WithoutHead> changes_without(const models::TextRun& result) {
    std::vector<viewer::WithoutHead> list;
    Progress progress("heads switched off", heads_off_.size());
    for (const auto& [layer, head] : heads_off_) {
      progress.show(list.size());
      list.push_back({layer, head, model_->change_without_head(result, layer, head)});
    }
    return list;
  }

  // Ranks the heads of the maps that the terminal shows: cross-attention if an encoder-decoder has generated tokens, else self-attention.
  void link_words(const models::TextRun& result) {
    const models::TokenizedText& keys = result.tokens;
    const std::vector<std::string> words = model_->sizes().kind == Kind::encoder ? keys.pieces : words_of(texts_[0].text, keys);
    const std::vector<std::string> rows = result.target ? words_of("", result.target->tokens) : words;
    link_ = read_link(*o_.link, rows, words, !result.target);
    rank_heads(*link_, result.target ? result.target->cross_attentions : result.attentions, keys.special);
  }

  // Chooses the head that the terminal shows. It may be another head for every text, so the JSON does not use it: programs need the same head for every text.
  HeadChoice telling_head_of(const models::TextRun& result) const {
    const std::vector<bool>&keys = result.tokens.special, &queries = result.target ? result.target->tokens.special : keys;
    return telling_head(result.target ? result.target->cross_attentions : result.attentions, queries, keys, !result.target, choice_);
  }

  // True if the norms of the values are needed: for a norm-weighted map, and for the page's switch.
  bool has_norms(std::size_t i) const { return o_.by_norms || (!o_.page.empty() && blocks_[i] == 0 && model_->sizes().kind != Kind::two_sides); }

  // True if all attention weights of text i are needed; false if the only output is a page that shows pooled maps.
  bool needs_every_pair(std::size_t i) const { return blocks_[i] == 0 || o_.json || !o_.arrays.empty() || o_.link; }

  // Checks that the attention weights fit into the page and that the arrays fit into memory. Called before the model runs, because running many texts takes long.
  void check_sizes() {
    const std::uint64_t memory = usable_memory();
    const auto most_in_memory = static_cast<std::int64_t>(memory / sizeof(float));
    // For each text: its number of tokens (counts) and its number of attention weights (weights).
    std::vector<std::int64_t> counts, weights;
    std::int64_t hidden = 0;
    for (const models::TokenizedText& tokens : tokens_) {
      counts.push_back(std::ssize(tokens.ids));
      weights.push_back(model_->sizes().attention_weights(counts.back(), o_.generate));
      hidden += model_->sizes().width * (counts.back() + o_.generate);
    }
    blocks_.assign(tokens_.size(), 0);
    if (!o_.page.empty()) blocks_ = pooled_sides(model_->sizes(), counts, o_.generate, most_in_memory);
    if (o_.link && blocks_[0] != 0) print_note("pooled maps do not show single words, so the page does not open at the words of --link");
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i] == 0) continue;
      if (o_.by_norms) fail(ErrorCode::unsupported, "--weighting norm: text ", i + 1, " has ", counts[i] + o_.generate, " tokens, so the page has pooled maps, which are not norm-weighted; give a shorter text, or leave out -o");
      print_diagnostic(cat(tokens_.size() == 1 ? "the text" : cat("text ", i + 1), " has ", counts[i] + o_.generate, " tokens: the page has pooled maps of ", blocks_[i], " x ", blocks_[i], " blocks, each with its largest attention weight"));
    }
    require_measurable(model_->sizes(), measured_tokens_);
    std::int64_t every_pair = 0;
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      if (!needs_every_pair(i)) continue;
      if (weights[i] > most_in_memory)
        fail(ErrorCode::invalid_argument, "the attention weights of all heads of one text are ", weights[i], " numbers of 4 bytes; there is ", byte_size(memory),
             " of memory, so give a shorter text, or only -o, which then writes a page with pooled maps");
      if (__builtin_add_overflow(every_pair, weights[i], &every_pair)) every_pair = std::numeric_limits<std::int64_t>::max() / 16;
    }
    // The arrays of all texts stay in memory until the last text is done, so their sum must fit.
    const std::uint64_t bytes = static_cast<std::uint64_t>(every_pair + hidden) * sizeof(float);
    if (!o_.arrays.empty() && bytes > memory)
      fail(ErrorCode::invalid_argument, "the arrays of ", counted(texts_.size(), "text"), " are ", byte_size(bytes),
           " and stay in memory until all texts are done; there is ", byte_size(memory), " of memory, so give fewer or shorter texts");
  }

  void draw_map(std::size_t i, const HeadChoice& choice, const std::vector<std::string>& rows, const std::vector<std::string>& columns, const Tensor& map) const {
    const std::size_t width = terminal_width(Stream::out);
    std::string text = i > 0 ? "\n" : "";
    append(text, heading(texts_[i], choice, o_.by_norms ? largest_text(map) : std::string(), width));
    const Tensor scaled = o_.by_norms ? in_units_of_largest(map) : Tensor();
    append(text, render({.weights = scaled ? scaled.view() : map.view(), .rows = rows, .columns = columns}, width, colour_of_stdout()));
    print(text);
  }

  void write() {
    Json files = Json::object();
    if (!o_.arrays.empty()) {
      save_arrays();
      files["arrays"] = o_.arrays;
      report_written(o_.arrays, counted(texts_.size(), "text"));
    }
    if (!o_.page.empty()) write_view_page(o_.page, page(), choice_, files);
    if (!o_.json) return;
    const models::AnyTextModel::Sizes& sizes = model_->sizes();
    Json result{{"model", {{"path", o_.model}, {"layers", sizes.layers}, {"heads", sizes.heads}, {"width", sizes.width}}},
                {"map", to_json(choice_, o_.by_norms)},
                {"texts", std::move(json_texts_)},
                {"files", std::move(files)}};
    if (measured_) result["measured"] = app::to_json(*measured_);
    print_json(result);
  }

  void save_arrays() const {
    std::vector<io::NamedView> arrays;
    Json texts = Json::array(), pairs = Json::array(), targets = Json::array();
    for (std::size_t i = 0; i < results_.size(); ++i) {
      const std::string suffix = results_.size() == 1 ? "" : cat("_", i);
      const models::TextRun& result = results_[i];
      arrays.push_back({"ids" + suffix, result.ids});
      arrays.push_back({"attentions" + suffix, result.attentions});
      if (o_.by_norms) arrays.push_back({"value_norms" + suffix, result.value_norms});
      arrays.push_back({"hidden" + suffix, result.hidden});
      if (result.embedding) arrays.push_back({"embedding" + suffix, result.embedding});
      if (result.target) {
        arrays.push_back({"target_ids" + suffix, result.target->ids});
        arrays.push_back({"cross_attentions" + suffix, result.target->cross_attentions});
        arrays.push_back({"target_attentions" + suffix, result.target->attentions});
      }
      texts.push_back(result.target ? texts_[i].text : texts_[i].text + result.generated.value_or(""));
      if (result.target) targets.push_back(*result.generated);
      if (texts_[i].pair) pairs.push_back(*texts_[i].pair);
    }
    io::Metadata metadata{{"texts", to_text(texts)}};
    if (!pairs.empty()) metadata["pairs"] = to_text(pairs);
    if (!targets.empty()) metadata["targets"] = to_text(targets);
    io::save_tensors(o_.arrays, arrays, metadata);
  }

  std::string page() const {
    std::vector<std::string> names;
    for (const InputText& text : texts_) names.push_back(text.text);
    viewer::Page page = page_frame(names, o_.model, o_.language, o_.vector_megabytes.value_or(viewer::Page().vector_megabytes));
    page.measured = measured_;
    page.start = address(link_ && blocks_[0] == 0 ? link_->address() : measured_ ? kScatter : "", o_.by_norms);
    for (std::size_t i = 0; i < results_.size(); ++i) {
      page.texts.push_back(page_text(texts_[i].both(), results_[i], without_[i], left_out_[i]));
    }
    return viewer::render(page);
  }

  ViewOptions o_;
  std::vector<InputText> texts_;
  std::vector<models::TokenizedText> tokens_;
  std::vector<InputText> measured_texts_;  // the texts of --texts
  std::vector<models::TokenizedText> measured_tokens_;
  std::optional<viewer::MeasuredTexts> measured_;
  std::unique_ptr<models::AnyTextModel> model_;
  HeadChoice choice_;
  std::optional<WordLink> link_;
  std::vector<std::pair<std::int64_t, std::int64_t>> heads_off_;
  std::vector<std::vector<viewer::WithoutHead>> without_;  // for each text, the effect of each head that --without names
  std::vector<models::TextRun> results_;
  // For each text: the number of blocks along each side of its pooled maps in the page; 0 if the page shows every pair of tokens.
  std::vector<std::int64_t> blocks_;
  // For each text: how many numbers of q, k and v did not fit into the page.
  std::vector<std::int64_t> left_out_;
  Json json_texts_ = Json::array();
};

// Throws a UsageError with `message` and the option's name if an option is given that is not in `allowed`.
void allow_only(const Parser& parser, std::initializer_list<std::string_view> allowed, const std::string& message) {
  for (const Option* option : parser.options())
    if (option->is_given() && std::ranges::find(allowed, option->name()) == allowed.end()) throw UsageError(option->name() + message);
}

// Views a model that `polyhead train` made; without a folder, the model of ratings that is part of polyhead.
void view_trained(const ViewOptions& o, const Parser& parser) {
  allow_only(parser, {"MODEL_DIR", "--text", "--output", "--json"},
             cat(o.model.empty() ? " needs MODEL_DIR; the model that is part of polyhead" : cat(" is not for a model that `polyhead train` made, as in '", o.model, "'"), " takes --text, -o and --json"));
  if (o.texts.size() != 1) throw UsageError(o.texts.empty() ? "there is no text; give --text \"...\", and MODEL_DIR, unless the text is for the model of ratings that is part of polyhead" : "a model that `polyhead train` made takes one --text");
  try_text({.model = o.model, .text = o.texts[0], .page = o.page, .json = o.json});
}

void view_live(const ViewOptions& o, const Parser& parser) {
  allow_only(parser, {"MODEL_DIR", "--live", "--engine", "--text", "--output", "--lang"}, " cannot be combined with --live, which takes MODEL_DIR, --text, --engine, --lang and -o");
  if (o.texts.size() > 1) throw UsageError("--live opens with one --text");
  write_live_page({.model = o.model, .page = o.page, .engine = o.engine, .text = o.texts.empty() ? "" : o.texts[0], .language = o.language});
}

}  // namespace

Subcommand declare_view(Parser& parser) {
  const auto o = std::make_shared<ViewOptions>();
  parser.add_option("MODEL_DIR", o->model, "folder with config.json, model.safetensors and tokenizer.json or vocab.txt (an encoder of BERT's kind, a decoder such as GPT-2 or Llama, or an encoder-decoder such as T5), or a folder that `polyhead train` made; default: the model of ratings that is part of polyhead");
  parser.add_option("TEXTS", o->source, "a file of texts to show, one per line, the same as --file (--texts is another option); - is standard input");
  parser.add_option("--text", o->texts, "the text; may be given several times")->type_name("TEXT");
  parser.add_option("--text-pair", [o](const std::string& text) { o->pair = text; }, "a second part of the text, which is segment 1 for the model")->type_name("TEXT");
  parser.add_option("--image", o->images, "a PNG or JPEG image, for a model of images (ViT, DeiT, CLIP, SigLIP, timm's ViT): its patches are the tokens; may be given several times")->type_name("PATH");
  parser.add_option("--file", o->file, "a file of texts to show, one per line, 64 MiB at most; empty lines are left out. The terminal, the page and the arrays have the maps of every text. - is standard input")->type_name("PATH");
  parser.add_option("--texts", o->measured, "texts to measure but not to show, one per line: the mean and the spread of each measure over all texts for each head, and which heads get a name. With -o the page opens with a scatter of all heads, measure against measure. Without --text and --file the page has the maps of the first text. - is standard input")->type_name("PATH");
  parser.add_option("-o,--output", o->page, "write one HTML page with the attention maps of all heads, pooled to blocks where the texts are too long for every pair; - is standard output")
      ->type_name("PATH");
  add_value(parser, "--lang", &o->language, read_language, "en|zh", "language of the page: English or Chinese (default: what the reader's browser prefers)");
  add_value(parser, "--layer", &o->layer, read_count, "L", "the layer to show, from 0 (default: the last; in the terminal, without --head too: the head that looks most at single other words of the text)");
  add_value(parser, "--head", &o->head, read_count, "H", "the head to show, from 0 (default with --layer: the mean over the layer's heads)");
  parser.add_flag("--mean", o->mean, "show the mean over the heads of --layer, or without --layer over all heads of all layers");
  add_value(parser, "--weighting", &o->by_norms, read_weighting, "attention|norm",
            "what the map shows: attention weights (default), or each attention weight times the norm of the value vector that it multiplies, transformed by the head's slice of the output projection (Kobayashi et al. 2020). The page has a switch, and opens with what is given here");
  parser.add_option("--without", o->without, "switch this head off, such as 2.8: its output is zero. The page shows how much that changes the text's embedding (1 - cosine). May be given several times, each head alone; all: every head, one run of the model for each")->type_name("L.H|all");
  parser.add_option("--link", [o](const std::string& words) { o->link = words; }, "rank the heads by their attention weight from one word to another, such as quick,fox or 2,4 (places from 0); with -o the page opens at these words, unless the text is so long that its maps are pooled")->type_name("QUERY,KEY");
  parser.add_option("--arrays", o->arrays, "write the arrays listed below to this file, .safetensors or .npz")->type_name("PATH");
  add_value(parser, "--vector-megabytes", &o->vector_megabytes,
            [](const std::string& word) {
              const double megabytes = read_number(word);
              if (megabytes < 0) throw UsageError(cat("'", word, "' is below 0; it is a size in MB"));
              return megabytes;
            },
            "MB", "with -o, keep q, k and v of the heads in the page up to this size, so that the page shows how a weight is computed (default: 4; 0: keep none)");
  add_value(parser, "--generate", &o->generate,
            [](const std::string& word) {
              constexpr std::int64_t kMost = std::int64_t{1} << 20;
              const std::int64_t tokens = read_positive(word);
              if (tokens > kMost) throw UsageError(cat(tokens, " tokens are more than the most, ", kMost));
              return tokens;
            },
            "N", "let the model write at most N tokens, always the likeliest one: a decoder continues the text, an encoder-decoder writes a target for it. The map shows what the decoder read for each token");
  parser.add_flag("--truncate", o->truncate, "cut the end of texts that are longer than the model allows");
  parser.add_flag("--live", o->live, "write a page in which readers type their own sentence: it carries the library, compiled to WebAssembly, the two models that are part of polyhead and, with MODEL_DIR, an encoder of BERT's kind as int8, of at most 72 MB");
  parser.add_option("--engine", o->engine, "with --live: the module that `scripts/live-engine` builds, if the program was built without it")->type_name("FILE");
  parser.add_flag("--json", o->json, "machine-readable, one object on one line");
  return {
      .examples = {{"polyhead view --text \"Nice screen, but far too heavy.\" -o heavy.html", "a model that is part of polyhead: which words each head reads"},
                   {"polyhead view MODEL_DIR --text \"The quick brown fox\" -o fox.html", "one HTML page with every head of every layer"},
                   {"polyhead view MODEL_DIR --text \"The quick brown fox\"", "one map in the terminal, of the head whose words look most strongly at one other word"},
                   {"polyhead view MODEL_DIR --text \"Who ran?\" --text-pair \"The fox ran.\" --layer 2 --head 7",
                    "one head, for a text of two parts"},
                   {"polyhead view MODEL_DIR --text \"The quick brown fox\" --link quick,fox", "which heads link two words"},
                   {"polyhead view MODEL_DIR --text \"The quick brown fox\" --without all -o fox.html", "how much each head changes the embedding, as a badge"},
                   {"polyhead view MODEL_DIR --texts texts.txt -o heads.html", "what each head does over many texts: a scatter of all heads, and their names"},
                   {"polyhead view LLAMA_DIR --text \"The quick brown fox\" --generate 20 -o fox.html", "what a decoder reads for each token that it writes"},
                   {"polyhead view T5_DIR --text \"summarize: The fox ran.\" --generate 20 -o fox.html", "what a decoder reads of the text for each token that it writes"},
                   {"polyhead view --live -o live.html", "a page that computes all maps of what its reader types, without a network"},
                   {"polyhead view MODEL_DIR --live -o live.html", "the same for an encoder of yours, with its matrices as int8"},
                   {"polyhead view VIT_DIR --image photo.jpg -o photo.html", "where each patch of an image looks"},
                   {"polyhead view MODEL_DIR --file texts.txt --arrays out.npz", "several texts, one per line; the attention weights of all heads in a file"},
                   {"echo \"The quick brown fox\" | polyhead view MODEL_DIR - --json | jq .texts[0].tokens", "JSON for other programs"}},
      .notes =
          "The terminal shows one attention map: each row is a word, its columns are the words that it attends to. If a text is too long "
          "for a grid, each word is followed by the words that it attends to most. Colours are used on a terminal only, and not if "
          "NO_COLOR is set.\n\n"
          "Arrays: ids [T] int64, attentions [layers,heads,T,T], hidden [T,E] of the last layer, embedding [E] (mean over the tokens, "
          "scaled to length 1; absent if the folder's modules.json asks for another); with --weighting norm also value_norms [layers,heads,T], by which the attention weights are multiplied. With several texts each name ends in _0, _1, ... The metadata of .safetensors has `texts` and, with "
          "--text-pair, `pairs`, each a JSON list.\n\n"
          "JSON: {model: {path, layers, heads, width}, map: {layer, head, description, weighting}, texts: [{text, pair, tokens, ids, segments, "
          "special, replaced_bytes, dropped_tokens, map, embedding, generated, link: {query, key, heads: [{layer, head, weight, usual}]}, without: [{layer, head, change}]}], files: {page, arrays}, measured: {texts, tokens: [shortest, longest], values: {measure: [layers][heads] {mean, spread, texts, held, named}}}}; map is [T][T], the "
          "attention weights row by row (times the norms, with the weighting norm); non-finite numbers are \"nan\", \"inf\" and \"-inf\"; layer and head are null if the map is a mean over "
          "them.\n\n"
          "Images: resized and normalised as the model's preprocessor_config.json says. Without -o and --json the terminal shows what the class token reads in each "
          "patch. Arrays: pixels [3,height,width], attentions, with --weighting norm value_norms, hidden, and those of pooled, logits and embedding that the model has. JSON: images: [{path, map, pooled, "
          "embedding, similarity, logits, label}] in place of texts, and text. A model with an image encoder and a text encoder also takes one --text: the page then has a tab for the text and one for the image, "
          "further arrays are text_ids, text_attentions, text_embedding and, with --weighting norm, text_value_norms, and similarity is CLIP's logits_per_image.\n\n"
          "A decoder has no embedding; row t of its map is what a head read to choose the token after t. `generated` and segment 1 are the tokens that the decoder wrote with --generate.\n\n"
          "Of an encoder-decoder the encoder's map is shown; with --generate, the map is what the decoder read of the text: the map's rows are target_tokens, the start token first, and row t is what a head "
          "read to choose the token after t. Further arrays: target_ids [T], cross_attentions [layers,heads,T,S], target_attentions [layers,heads,T,T]; the metadata of .safetensors has `targets`. JSON has "
          "target_tokens and target_ids.\n\n"
          "For a model that `polyhead train` made: one --text, -o with a file name, and the JSON of `polyhead try`.\n\n"
          "Bytes that are not valid UTF-8 are read as U+FFFD, with a note on stderr.\n",
      .run =
          [o, &parser] {
            if (o->live) return view_live(*o, parser);
            if (!o->engine.empty()) throw UsageError("--engine is for --live");
            if (!o->images.empty()) {
              check(*o);
              return view_images(*o);
            }
            o->model.empty() || is_trained(o->model) ? view_trained(*o, parser) : View(*o).run();
          },
  };
}

}  // namespace polyhead::app
