#include "trace_story.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments.h"
#include "core/text.h"
#include "format.h"
#include "layer_call.h"
#include "layer_constructors.h"
#include "number_text.h"
#include "polyhead/maps.h"
#include "terminal.h"
#include "text_layout.h"
#include "trace_sentences.h"
#include "trace_table.h"

namespace polyhead::app {
namespace {

// What a story shows: a layer on chosen numbers, some of its steps, and what to look at.
struct LayerStory {
  std::string_view layer;
  std::map<std::string, std::string> arguments;
  Shape shape;
  std::vector<double> query;
  std::vector<std::int64_t> key_lengths = {};
  std::vector<std::string_view> steps;  // names of the steps that are shown
  int digits = 0;
};

struct Story {
  std::string_view name, question, answer, source;
  void (*tell)(const Story& story, std::uint64_t seed, bool json);
  bool is_random = false;
};

void tell_layer(const Story& story, const LayerStory& of, bool json) {
  const LayerConstructor& row = find_constructor(std::string(of.layer));
  const LayerArguments arguments = complete(row, of.arguments, {});
  const io::LayoutDescription layout = layout_called(row.layout());
  nn::MultiHeadAttentionConfig config = config_of(row, arguments);
  if (layout.empty_rows) config.empty_rows = *layout.empty_rows;
  config.seed = 1;  // any seed will do: copy_inputs() replaces the parameters that are drawn with it
  LoadedLayer loaded{.layer = nn::MultiHeadAttention(config), .layout = std::string(row.layout())};
  // Every number can be followed if all projections copy their inputs. Each of several heads gets the whole input, every second head with the opposite sign, so that heads differ.
  for (nn::Linear* projection : {&loaded.layer.q, &loaded.layer.k, &loaded.layer.v, &loaded.layer.output})
    if (projection->weight) copy_inputs(projection);
  LayerCall call;
  call.query = Tensor::copy_of(ConstTensorView(of.query.data(), of.shape), DType::f32);
  set_input(loaded, &call);
  AttentionRules rules;
  if (!of.key_lengths.empty()) rules.key_lengths = of.key_lengths;
  set_options(loaded, rules, nullptr, &call);
  std::vector<TraceStep> steps = trace_sentences(loaded.layer, call.input, call.options, layout.projections, loaded.layout);
  std::erase_if(steps, [&](const TraceStep& step) { return std::ranges::find(of.steps, step.step) == of.steps.end(); });
  if (json) return print_json({{"story", story.name}, {"question", story.question}, {"answer", story.answer}, {"layer", call_text(row, arguments)}, {"steps", trace_json(steps, true)}});
  const std::size_t width = table_width();
  std::string text = cat(wrap(story.question, width), wrap(call_text(row, arguments), width), wrap(story.source, width));
  NumberStyle style{.digits = of.digits, .width = width};
  for (const TraceStep& step : steps) {
    append(text, cat("\n", wrap(cat(step.step, "  ", step.shape(), "  ", step.meaning), width), number_text(step.value, style)));
    for (const SourceStep& part : step.source) append(text, cat(wrap(cat("in the source: ", part.code, "  ", part.value.shape()), width), number_text(part.value, style)));
  }
  print(cat(text, "\n", wrap(story.answer, width)));
}

void tell_split(const Story& story, std::uint64_t, bool json) {
  std::vector<double> query;
  for (const int first : {10, 20})
    for (int i = 0; i < 8; ++i) query.push_back(first + i);
  tell_layer(story, {.layer = "d2l", .arguments = {{"--num-hiddens", "8"}, {"--num-heads", "2"}}, .shape = {1, 2, 8}, .query = std::move(query), .steps = {"query", "split q"}}, json);
}

void tell_global(const Story& story, std::uint64_t, bool json) {
  tell_layer(story, {.layer = "alphafold", .arguments = {{"--c-in", "2"}, {"--c", "2"}, {"--n-head", "2"}, {"--is-global", "true"}}, .shape = {1, 3, 2}, .query = {1, 0, 0, 1, 2, 2},
                     .steps = {"query", "mean query", "split q", "split k", "scale", "softmax", "weighted values"}, .digits = 4}, json);
}

void tell_lengths(const Story& story, std::uint64_t, bool json) {
  std::vector<double> query;
  for (int i = 0; i < 16; ++i) query.push_back(0.25 * (i % 8));
  tell_layer(story, {.layer = "d2l", .arguments = {{"--num-hiddens", "2"}, {"--num-heads", "1"}}, .shape = {2, 4, 2}, .query = std::move(query), .key_lengths = {3, 2}, .steps = {"query", "scale", "mask", "softmax", "weighted values"}, .digits = 4}, json);
}

// ---- scale: numbers over many random rows ----

struct ScaleRow {
  std::int64_t width = 0;
  double variance = 0, scaled_variance = 0;  // variances of <q,k> and of <q,k> / sqrt(d)
  double largest = 0, scaled_largest = 0;    // largest attention weight of a row, averaged over the rows
  double slope = 0, scaled_slope = 0;        // mean of p (1 - p), the derivative of an attention weight p by its own score
};

double mean_of(std::span<const double> numbers, const auto& of) {
  double sum = 0;
  for (const double x : numbers) sum += of(x);
  return sum / static_cast<double>(numbers.size());
}

constexpr std::int64_t kRows = 1000, kKeys = 16;

ScaleRow measure_scale(std::int64_t width, std::uint64_t seed) {
  const Tensor q = random_numbers({kRows, 1, 1, width}, DType::f64, 2 * seed), k = random_numbers({kRows, 1, kKeys, width}, DType::f64, 2 * seed + 1);
  Tensor map(DType::f64, {kRows, 1, 1, kKeys});
  const std::span<const double> numbers(map.data<double>(), static_cast<std::size_t>(map.numel()));
  const auto fill_map = [&](bool scaled, MapValue value) { attention_map({.q = q, .k = k}, map, {.scale = scaled ? 1 / std::sqrt(static_cast<double>(width)) : 1}, value); };
  const auto variance = [&] {
    const double mean = mean_of(numbers, [](double x) { return x; });
    return mean_of(numbers, [&](double x) { return (x - mean) * (x - mean); });
  };
  ScaleRow row{.width = width};
  for (const bool scaled : {false, true}) {
    fill_map(scaled, MapValue::scaled_score);
    (scaled ? row.scaled_variance : row.variance) = variance();
    fill_map(scaled, MapValue::probability);
    double largest = 0;
    for (std::int64_t r = 0; r < kRows; ++r) largest += *std::ranges::max_element(numbers.subspan(static_cast<std::size_t>(r * kKeys), kKeys));
    (scaled ? row.scaled_largest : row.largest) = largest / kRows;
    (scaled ? row.scaled_slope : row.slope) = mean_of(numbers, [](double p) { return p * (1 - p); });
  }
  return row;
}

void tell_scale(const Story& story, std::uint64_t seed, bool json) {
  std::vector<ScaleRow> rows;
  for (const std::int64_t width : {1, 4, 16, 64, 256, 1024}) rows.push_back(measure_scale(width, seed));
  if (json) {
    Json list = Json::array();
    for (const ScaleRow& row : rows)
      list.push_back({{"d", row.width}, {"variance", row.variance}, {"scaled_variance", row.scaled_variance}, {"largest", row.largest}, {"scaled_largest", row.scaled_largest}, {"slope", row.slope}, {"scaled_slope", row.scaled_slope}});
    return print_json({{"story", story.name}, {"question", story.question}, {"answer", story.answer}, {"rows", kRows}, {"keys", kKeys}, {"widths", std::move(list)}});
  }
  const std::size_t width = table_width();
  std::vector<std::vector<std::string>> cells{{"", "variance", "", "largest weight", "", "p (1 - p)", ""}, {"d", "q.k", "q.k/sqrt(d)", "q.k", "q.k/sqrt(d)", "q.k", "q.k/sqrt(d)"}};
  for (const ScaleRow& row : rows)
    cells.push_back({cat(row.width), fixed(row.variance, 2), fixed(row.scaled_variance, 2), fixed(row.largest, 3), fixed(row.scaled_largest, 3), fixed(row.slope, 4), fixed(row.scaled_slope, 4)});
  std::string text = cat(wrap(story.question, width), wrap(cat(kRows, " rows of one query and ", kKeys, " keys, of d features each, all normal with mean 0 and variance 1 (seed ", seed, "); scores q.k, and softmax over the ", kKeys, " keys."), width), wrap(story.source, width), "\n");
  for (const std::string& line : aligned(cells)) append(text, cat(trimmed(line), "\n"));
  print(cat(text, "\n", wrap(story.answer, width)));
}

constexpr std::array kStories{
    Story{"split", "Which numbers go to which head when heads are reshaped? Two queries, 10 to 17 and 20 to 27, and two heads.",
          "Head 0 has the first four features of every query, 10 to 13 and 20 to 23; head 1 has the other four, 14 to 17 and 24 to 27. A reshape to (2,2,4) without the permute would give head 0 all of the first query.",
          "Dive into Deep Learning, section 11.5, transpose_qkv.", tell_split},
    Story{"global", "What is the mean of queries in global attention? Three positions, two heads that share keys and values.",
          "The three queries 1 0, 0 1 and 2 2 become one, their mean 1 1. So there is one row of attention weights for each head, not three, and the cost grows with T, not with T squared. Head 1 has the opposite query here, and looks elsewhere; keys and values are the same for both heads.",
          "AlphaFold 2 (Jumper et al. 2021), supplement, algorithm 19, MSAColumnGlobalAttention; projections copy their inputs here.", tell_global},
    Story{"lengths", "What do valid lengths do to the softmax? Two sequences of four keys, of which three and two are valid.",
          "Scores of keys from the valid length on become -inf, and their attention weights exactly 0. Those of the other keys still sum to 1: they are the attention weights of the unmasked row divided by their sum.",
          "Dive into Deep Learning, section 11.3, masked_softmax with valid_lens = (3, 2); projections copy their inputs here.", tell_lengths},
    Story{"scale", "Why are scores divided by the root of d?",
          "The variance of q.k is d: it is a sum of d products of variance 1. Without the scale the softmax of wide heads is nearly one-hot, and p (1 - p), the derivative of a weight by its own score, goes to 0, so that training gets hardly any gradient. Divided by sqrt(d), scores have variance 1 for every d, and the softmax hardly changes with d.",
          "Attention Is All You Need (Vaswani et al. 2017), section 3.2.1 and footnote 4.", tell_scale, true},
};

}  // namespace

void tell_story(const std::string& name, std::optional<std::uint64_t> seed, bool json) {
  std::vector<std::string> names;
  for (const Story& story : kStories) names.emplace_back(story.name);
  const std::string chosen = read_choice(name, "story", names);
  const Story& story = *std::ranges::find(kStories, chosen, &Story::name);
  if (seed && !story.is_random) throw UsageError(cat("--seed: the story ", story.name, " has no random numbers"));
  story.tell(story, seed.value_or(0), json);
}

std::string story_list(std::size_t width) {
  std::string text;
  for (const Story& story : kStories) append(text, cat(story.name, "\n", wrap(story.question, width, 2), wrap(story.source, width, 2)));
  return text;
}

Json story_list_json() {
  Json list = Json::array();
  for (const Story& story : kStories) list.push_back({{"story", story.name}, {"question", story.question}, {"source", story.source}});
  return list;
}

}  // namespace polyhead::app
