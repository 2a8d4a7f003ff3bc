#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "arguments.h"
#include "attention_rules.h"
#include "core/join.h"
#include "format.h"
#include "input_tensors.h"
#include "layer_call.h"
#include "layer_constructors.h"
#include "number_text.h"
#include "parser.h"
#include "placeholder.h"
#include "terminal.h"
#include "text_layout.h"
#include "trace_cell.h"
#include "trace_model.h"
#include "trace_sentences.h"
#include "trace_story.h"
#include "trace_table.h"
#include "view_input.h"

namespace polyhead::app {
namespace {

// Largest number of scores in a trace. A trace keeps up to seven tensors of this size, with 4 or 8 bytes for each element.
constexpr std::int64_t kMaxScores = std::int64_t{1} << 26;

constexpr std::string_view kIdentity = "identity";  // value of --parameters that makes every projection the identity

struct TraceOptions {
  std::string layer, story;
  CellOptions cell;
  std::map<std::string, std::string> arguments;  // "--num-hiddens" -> "100"
  LayerFile file;
  AttentionRules rules;
  LayerRules layer_rules;
  std::string input;
  std::int64_t batch = 2, length = 10;
  std::optional<std::int64_t> key_length;
  std::optional<Shape> shape;
  std::optional<DType> dtype;
  std::optional<std::uint64_t> seed;  // the seed is 0 if this is absent
  std::optional<double> count_from;
  bool ones = false, pair_bias = false;
  bool list = false, values = false, json = false;
  NumberStyle numbers;
};

// An attention layer, and the names of its projections in the source code of the library or tutorial that defines the layer.
struct TracedLayer {
  LoadedLayer loaded;
  std::string title;
  ProjectionNames names;
  bool cross = false, pair_bias = false;
};

// Makes every projection the identity, so that q, k and v equal the inputs.
void set_identity(nn::MultiHeadAttention* layer, const ProjectionNames& names) {
  const auto set = [&](const char* letter, nn::Linear* linear) {
    if (!linear->weight) return;
    const Shape& shape = linear->weight.shape();
    if (shape[0] != shape[1]) {
      throw UsageError(cat("--parameters identity: ", names.at(letter), " has ", counted(shape[1], "input"), " and ", counted(shape[0], "output"), "; a projection can be the identity only if it has as many inputs as outputs"));
    }
    copy_inputs(linear);
  };
  set("q", &layer->q), set("k", &layer->k), set("v", &layer->v), set("gate", &layer->gate), set("output", &layer->output);
  for (Tensor* added : {&layer->bias_k, &layer->bias_v}) {
    if (*added) fill(*added, 0);
  }
}

bool is_identity(const TraceOptions& o) { return o.file.path == kIdentity; }

TracedLayer constructed(const TraceOptions& o, DType dtype) {
  const LayerConstructor& row = find_constructor(o.layer);
  std::map<std::string, std::string> given = o.arguments;
  if (o.rules.dropout && row.takes(Setting::dropout)) given["--dropout"] = cat(*o.rules.dropout);
  if (o.layer_rules.add_zero_attn && row.takes(Setting::add_zero_attn)) given["--add-zero-attn"] = "true";
  if (o.layer_rules.axis && row.takes(Setting::axis)) given.try_emplace("--attn-dim", cat(*o.layer_rules.axis));
  if (o.layer_rules.global_query && row.takes(Setting::global_query)) given.try_emplace("--is-global", *o.layer_rules.global_query == nn::GlobalQuery::off ? "false" : "true");
  const LayerArguments arguments = complete(row, given, o.file.heads);
  nn::MultiHeadAttentionConfig config = config_of(row, arguments);
  if (o.layer_rules.axis && row.takes(Setting::axis) && config.axis != *o.layer_rules.axis) throw UsageError("--axis and --attn-dim differ");
  if (o.layer_rules.global_query && row.takes(Setting::global_query) && (config.global_query == nn::GlobalQuery::off) != (*o.layer_rules.global_query == nn::GlobalQuery::off))
    throw UsageError("--global-query and --is-global differ");
  const io::LayoutDescription layout = layout_called(row.layout());
  if (layout.empty_rows) config.empty_rows = *layout.empty_rows;
  apply(o.rules, &config);
  apply(o.layer_rules, &config);
  config.dtype = dtype;
  config.seed = o.seed.value_or(0);
  if (config.axis == -1) throw UsageError("axis -1 is the width; attention runs along a dimension before it");
  nn::MultiHeadAttention layer(config);
  if (is_identity(o)) set_identity(&layer, layout.projections);
  return {.loaded = {.layer = std::move(layer), .layout = std::string(row.layout()), .causal = layout.causal, .rotary_base = o.layer_rules.rotary_base.value_or(0)},
          .title = call_text(row, arguments),
          .names = layout.projections,
          .cross = row.cross,
          .pair_bias = row.pair_bias};
}

TracedLayer loaded(const TraceOptions& o) {
  if (!o.arguments.empty()) throw UsageError(cat(o.arguments.begin()->first, " is for --layer; with --parameters the file decides"));
  if (o.dtype) throw UsageError("--dtype is for --layer; with --parameters the file decides");
  LoadedLayer file = load_layer(o.file, o.rules, o.layer_rules);
  TracedLayer traced{.title = cat(printable(o.file.path), ": layout ", file.layout)};
  if (!file.prefix.empty()) append(traced.title, cat(" at ", printable(file.prefix)));
  traced.names = layout_called(file.layout).projections;
  traced.loaded = std::move(file);
  return traced;
}

int axis_of(const nn::MultiHeadAttentionConfig& config, int rank) { return config.axis < 0 ? config.axis + rank : config.axis; }

void require_small(const Shape& scores) {
  require(numel(scores) <= kMaxScores, "trace: the scores are ", scores, ", which is too large; a trace has at most ", kMaxScores, " scores");
}

Tensor counted_numbers(const Shape& shape, DType dtype, double first) {
  Tensor x(DType::f64, shape);
  std::iota(x.data<double>(), x.data<double>() + x.numel(), first);
  return Tensor::copy_of(x, dtype);
}

// Makes the inputs and returns a description of them.
std::string make_inputs(const TraceOptions& o, const TracedLayer& traced, std::mt19937_64& seeds, LayerCall* call) {
  const nn::MultiHeadAttentionConfig& c = traced.loaded.layer.config;
  Shape shape;
  if (o.shape) {
    shape = *o.shape;
  } else {
    const int axis = axis_of(c, 3);
    if (axis == 2) throw UsageError(cat("axis ", c.axis, " is the width; attention runs along a dimension before it"));
    if (axis < 0 || axis > 1) throw UsageError(cat("attention along axis ", c.axis, " needs an input of more dimensions; give its shape, width included, with --shape"));
    shape = {o.batch, o.batch, c.query_width};
    shape[axis] = o.length;
  }
  const int axis = axis_of(c, shape.size());
  const bool has_key = (traced.cross || o.key_length || c.key_width != c.query_width || c.value_width != c.query_width) && 0 <= axis && axis < shape.size() - 1;
  Shape key_shape = shape, value_shape = shape;
  if (has_key) {
    key_shape[axis] = value_shape[axis] = o.key_length.value_or(shape[axis]);
    key_shape[-1] = c.key_width;
    value_shape[-1] = c.value_width;
  }
  const bool has_value = has_key && c.value_width != c.key_width;
  require_small(traced.loaded.layer.maps_shape({.query = placeholder(c.dtype, shape),
                                                .key = has_key ? placeholder(c.dtype, key_shape) : ConstTensorView(),
                                                .value = has_value ? placeholder(c.dtype, value_shape) : ConstTensorView()}));
  const auto filled = [&](const Shape& wanted) {
    if (o.count_from) return counted_numbers(wanted, c.dtype, *o.count_from);
    if (!o.ones) return random_numbers(wanted, c.dtype, seeds());
    Tensor x(c.dtype, wanted);
    fill(x, 1);
    return x;
  };
  call->query = filled(shape);
  if (has_key) call->key = filled(key_shape);
  if (has_value) call->value = filled(value_shape);
  if (o.count_from) return cat(*o.count_from, ", ", *o.count_from + 1, ", ", *o.count_from + 2, ", ...");
  return o.ones ? std::string("ones") : cat("random numbers (normal, seed ", o.seed.value_or(0), ")");
}

std::string list_text(std::size_t width) {
  std::string text;
  for (const LayerConstructor& row : layer_constructors()) {
    append(text, cat(row.name, "\n", wrap(call_text(row, complete(row, {}, {})), width, 2), wrap(row.source, width, 2)));
  }
  append(text, cat("\n", wrap("Stories, for --story:", width), story_list(width)));
  return text;
}

Json list_json() {
  Json list = Json::array();
  for (const LayerConstructor& row : layer_constructors()) {
    Json arguments = Json::object();
    for (const LayerArgument& argument : row.arguments) arguments[std::string(argument.name)] = {{"option", option_of(argument.name)}, {"default", argument.default_value}};
    list.push_back({{"layer", row.name}, {"call", row.call}, {"source", row.source}, {"arguments", arguments}});
  }
  return {{"layers", list}, {"stories", story_list_json()}};
}

Json config_json(const nn::MultiHeadAttentionConfig& c) {
  return {{"query_width", c.query_width}, {"key_width", c.key_width},   {"value_width", c.value_width},           {"heads", c.heads},
          {"kv_heads", c.kv_heads},       {"head_width", c.head_width}, {"value_head_width", c.value_head_width}, {"output_width", c.output_width},
          {"axis", c.axis},               {"dtype", info(c.dtype).name}};
}

std::string value_sections(const std::vector<TraceStep>& steps, const NumberStyle& style) {
  std::string text;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const auto& [name, tensor] : steps[i].parameters) append(text, cat("\n", wrap(cat(name, "  ", tensor.shape()), style.width), number_text(tensor, style)));
    append(text, cat("\n", i + 1, "  ", steps[i].step, "  ", steps[i].shape(), "\n", number_text(steps[i].value, style)));
    for (const SourceStep& part : steps[i].source) append(text, cat("\n", wrap(cat(i + 1, "  in the source: ", part.code, "  ", part.value.shape()), style.width), number_text(part.value, style)));
  }
  return text;
}

void print_steps(const TraceOptions& o, const TracedLayer& traced, const LayerCall& call, const std::string& description) {
  const nn::MultiHeadAttentionConfig& c = traced.loaded.layer.config;
  const std::vector<TraceStep> steps = trace_sentences(traced.loaded.layer, call.input, call.options, traced.names, traced.loaded.layout);
  if (o.json)
    return print_json(
        {{"layer", traced.title}, {"input", description}, {"config", config_json(c)}, {"steps", trace_json(steps, o.values)}});
  const std::size_t width = table_width();
  std::string text = cat(wrap(traced.title, width), wrap(cat("input: ", description, ", ", c.dtype), width), "\n",
                         trace_table(steps, width), "\n", wrap(legend(c, call.weights, call.keys), width));
  NumberStyle style = o.numbers;
  style.width = width;
  if (o.values) append(text, value_sections(steps, style));
  print(text);
}

void trace_text(const TraceOptions& o) {
  ModelLayer layer = model_layer(o.cell.model, o.cell.text, o.layer, kMaxScores);
  LayerCall call;
  call.query = std::move(layer.input);
  call.options = layer.options;
  const std::int64_t length = std::ssize(layer.pieces);
  TracedLayer traced{.loaded = {.layer = std::move(layer.attention), .layout = layer.family},
                     .title = cat("layer ", layer.index, " of ", printable(model_name(o.cell.model)), ", which has the layers 0 to ", layer.layers - 1),
                     .names = std::move(layer.names)};
  set_input(traced.loaded, &call);
  print_steps(o, traced, call, cat(counted(length, "token"), layer.normed ? ", normed" : "", ": ", join(layer.pieces, printable, " ")));
}

void run_trace(const TraceOptions& o) {
  if (!o.story.empty()) return tell_story(o.story, o.seed, o.json);
  if (!o.cell.cell.empty()) {
    if (o.cell.model.empty()) throw UsageError("a cell of a model needs three things: MODEL_DIR --text \"...\" --cell LAYER,HEAD,QUERY,KEY");
    CellOptions cell = o.cell;
    cell.json = o.json;
    return trace_cell(cell);
  }
  if (!o.cell.model.empty() || !o.cell.text.empty()) {
    if (o.cell.model.empty() || o.cell.text.empty()) throw UsageError("a layer of a model needs two things: MODEL_DIR --text \"...\"; --layer is its number");
    return trace_text(o);
  }
  if (o.list) return o.json ? print_json(list_json()) : print(list_text(terminal_width(Stream::out)));
  if (is_identity(o)) {
    if (o.layer.empty()) throw UsageError("--parameters identity needs a layer: --layer NAME ('polyhead trace --list' lists the names)");
    if (o.file.prefix || !o.file.layout.empty()) throw UsageError(cat(o.file.prefix ? "--prefix" : "--layout", " is for --parameters FILE; `--parameters identity` reads no file (give ./identity for a file of this name)"));
  } else if (o.layer.empty() == o.file.path.empty()) {
    throw UsageError(o.layer.empty() ? "give a layer: --layer NAME ('polyhead trace --list' lists the names) or --parameters FILE" : "give --layer or --parameters, not both");
  }
  std::optional<InputTensors> in;
  if (!o.input.empty()) in.emplace(o.input);
  DType dtype = o.dtype.value_or(DType::f32);
  if (in && !o.dtype && in->has("query")) {
    const DType given = in->dtype("query");
    if (is_floating(given)) dtype = given;
  }
  const TracedLayer traced = o.layer.empty() ? loaded(o) : constructed(o, dtype);
  const LoadedLayer& layer = traced.loaded;
  // These seeds are for the inputs only. The layer's parameters are drawn with the seed o.seed itself.
  std::mt19937_64 seeds(o.seed.value_or(0));
  LayerCall call;
  std::string description = printable(o.input);
  if (in) {
    read_inputs(&*in, layer, &call);
  } else {
    description = make_inputs(o, traced, seeds, &call);
  }
  if (is_identity(o)) append(description, "; parameters: identity");
  set_input(layer, &call);
  require_small(call.weights);
  const bool draws_bias = !call.bias && (o.pair_bias || traced.pair_bias), draws_inputs = !in && !o.ones && !o.count_from, draws_parameters = !o.layer.empty() && !is_identity(o);
  if (o.seed && !draws_bias && !draws_inputs && !draws_parameters) throw UsageError("--seed: nothing is random here; parameters and inputs are given");
  if (draws_bias) call.bias = random_numbers(shared_bias_shape(call), layer.layer.config.dtype, seeds());
  set_options(layer, o.rules, in ? &*in : nullptr, &call);
  if (in) {
    std::vector<std::string> expected = layer.names;
    expected.emplace_back("d_out");  // d_out is an input of `attend`, so do not report it as unused
    in->report_unused({"query", "key", "value"}, expected);
  }
  print_steps(o, traced, call, description);
}

// Adds an option for each argument of the layer constructors. An argument that several constructors take is added once; its help lists these constructors.
void add_constructor_arguments(Parser& parser, const std::shared_ptr<TraceOptions>& o) {
  struct Entry {
    std::string option;
    bool flag;
    std::vector<std::string_view> layers;
  };
  std::vector<Entry> entries;
  for (const LayerConstructor& row : layer_constructors()) {
    for (const LayerArgument& argument : row.arguments) {
      if (argument.setting == Setting::dropout || argument.setting == Setting::add_zero_attn) continue;  // every layer has these options, so they are added elsewhere
      const std::string option = option_of(argument.name);
      auto entry = std::ranges::find(entries, option, &Entry::option);
      if (entry == entries.end()) entry = entries.insert(entries.end(), {option, argument.is_flag(), {}});
      entry->layers.push_back(row.name);
    }
  }
  for (const Entry& entry : entries) {
    Option* const option = parser.add_option(entry.option, [o, name = entry.option](const std::string& word) { o->arguments[name] = word; }, cat("argument of ", join(entry.layers)));
    option->type_name(entry.flag ? "[true|false]" : "N");
    if (entry.flag) option->value_is_optional();
  }
}

}  // namespace

Subcommand declare_trace(Parser& parser) {
  const auto o = std::make_shared<TraceOptions>();
  parser.add_option("MODEL_DIR", o->cell.model, "with --text: folder with config.json, model.safetensors and tokenizer.json or vocab.txt (an encoder or a decoder)");
  Option* text = parser.add_option("--text", o->cell.text, "a text for the model in MODEL_DIR: traces the layer --layer of the model as it reads the text; with --cell, shows one attention weight")->type_name("TEXT");
  Option* cell = parser.add_option("--cell", o->cell.cell, "with --text: show how one attention weight is computed from q and k, and the head's output. QUERY and KEY are places in the text, from 0, or words of it")
                          ->type_name("LAYER,HEAD,QUERY,KEY")
                          ->needs(text);
  parser.add_option("--layer", o->layer, "construct the layer of this name; --list lists names and arguments. With --text: the number of a layer of the model, from 0 (default: 0)")->type_name("NAME");
  Option* list = parser.add_flag("--list", o->list, "list the layers that have a name, with their arguments and defaults, and the stories");
  Option* story = parser.add_option("--story", o->story, "show a small computation with chosen numbers: split (which numbers go to which head), global (the mean of queries), lengths (valid lengths in the softmax), scale (why the root of d). Needs no file; --json and, for scale, --seed may be added")->type_name("NAME");
  Option* parameters = parser.add_option("--parameters", o->file.path, "load a layer from this file of parameters. Or, with --layer, the word identity: each projection returns its input")->type_name("FILE");
  for (Option* option : add_layer_file(parser, &o->file)) option->needs(parameters);
  add_value(parser, "--heads", &o->file.heads, read_positive, "N", "number of heads; this option works for every --layer, even if the layer's own argument has another name");
  add_constructor_arguments(parser, o);
  Option* input = parser.add_option("--input", o->input, "read the tensors of the call from this file: query; optional: key, value, bias; " + mask_tensors())->type_name("FILE");
  Option* shape = add_value(parser, "--shape", &o->shape, read_shape, "SHAPE", "shape of the query input, width included, instead of --batch and --length");
  std::vector<Option*> sizes{
      add_value(parser, "--batch", &o->batch, read_count, "B", "number of sequences (default: 2)")->excludes(shape),
      add_value(parser, "--length", &o->length, read_count, "T", "positions of each sequence (default: 10)")->excludes(shape),
      add_value(parser, "--key-length", &o->key_length, read_count, "S", "attend to another sequence, of S positions"),
      shape,
      parser.add_flag("--ones", o->ones, "inputs of ones instead of random numbers"),
      add_value(parser, "--count-from", &o->count_from, read_number, "X", "inputs X, X + 1, X + 2, ... instead of random numbers"),
      parser.add_flag("--pair-bias", o->pair_bias, "add a random bias [1,N,T,S] to the scores")};
  parser.find("--ones")->excludes(parser.find("--count-from"));
  for (Option* option : sizes) option->excludes(input);
  Option* const seed = add_value(parser, "--seed", &o->seed, read_seed, "SEED", "seed of random inputs and of the parameters of --layer (default: 0)");
  add_value(parser, "--dtype", &o->dtype, read_floating, "DTYPE", "dtype of --layer: f32, f64, bf16 or f16 (default: that of the query, else f32)");
  add_attention_rules(parser, &o->rules);
  add_key_bounds(parser, &o->rules);
  add_layer_rules(parser, &o->layer_rules);
  add_mask_like_input(parser, &o->rules);
  Option* values = parser.add_flag("--values", o->values, "show the numbers of every step and of the parameters too");
  add_value(parser, "--limit", &o->numbers.limit, read_positive, "N", "show at most about N numbers of each step: the first and the last of each dimension (default: 200)")->needs(values);
  add_value(parser, "--precision", &o->numbers.digits,
            [](const std::string& word) {
              const std::int64_t digits = read_count(word);
              if (digits > 17) throw UsageError(cat("'", digits, "' is too large; a number has at most 17 digits"));
              return static_cast<int>(digits);
            },
            "DIGITS", "digits after the decimal point (default: 4)")
      ->needs(values);
  Option* as_json = parser.add_flag("--json", o->json, "machine-readable, one object on one line; with --values every number of every step");
  const std::array of_cell{cell, text, as_json};
  const std::array of_text{parser.find("--layer"), values, parser.find("--limit"), parser.find("--precision")};
  for (Option* option : parser.options()) {
    if (option != list && option != as_json && option != parser.help_option()) list->excludes(option);
    if (option->is_positional() || option == cell || option == text) story->excludes(option);
    if (std::ranges::count(of_cell, option) > 0 || option->is_positional() || option == parser.help_option()) continue;
    if (option != story && option != seed) story->excludes(option);
    cell->excludes(option);
    if (std::ranges::count(of_text, option) == 0) text->excludes(option);
  }
  return {
      .examples = {{"polyhead trace --layer d2l --num-hiddens 100 --heads 5 --batch 2 --length 10", "the layer of Dive into Deep Learning, step by step"},
                   {"polyhead trace --layer d2l --num-hiddens 4 --heads 2 --length 3 --valid-lens 2,3 --values", "with a mask, and with all numbers"},
                   {"polyhead trace --layer d2l --num-hiddens 6 --heads 2 --batch 1 --length 3 --parameters identity --count-from 10 --values",
                    "how 10 to 27 are split into heads and merged: W_q, W_k, W_v and W_o change nothing"},
                   {"polyhead trace --story split", "which numbers go to which head: 10 to 17 and 20 to 27 as two queries; further stories are global, lengths and scale"},
                   {"polyhead trace --layer alphafold --gated --is-global --attn-dim -3 --shape 2,7,5,8", "one query for all positions of an axis, and a gate"},
                   {"polyhead trace --parameters model.safetensors --prefix encoder.layer.0 --heads 12", "one layer of a model"},
                   {"polyhead trace MODEL_DIR --text \"The quick brown fox\" --layer 2", "a layer of a model on a sentence"},
                   {"polyhead trace MODEL_DIR --text \"The quick brown fox\" --cell 2,8,brown,fox", "how one attention weight of a model is computed, in numbers"},
                   {"polyhead trace --list", "all layers that have a name"}},
      .notes = "Heads are a separate dimension, [B,N,T,H]. Source code that folds heads into the batch has the same data as (B*N,T,H).\n"
               "JSON: {layer, input, config, steps: [{step, where, shape, letters, meaning, dtype, values, parameters: [{name, shape, values}], source: [{code, shape, values}]}]}, or with --cell {text, layer, head, query, key, q, k, products, dot, scale, score, "
               "largest, exp, sum, weight, keys: [{token, score, exp, weight, v}], output}; non-finite numbers are \"nan\", \"inf\" and \"-inf\".\n",
      .run = [o] { run_trace(*o); },
  };
}

}  // namespace polyhead::app
