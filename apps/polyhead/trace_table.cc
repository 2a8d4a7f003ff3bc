#include "trace_table.h"

#include <algorithm>

#include "core/text.h"
#include "format.h"
#include "number_text.h"
#include "text_layout.h"

namespace polyhead::app {
namespace {

constexpr std::size_t kGap = 2, kSmallestMeaning = 44;

struct Column {
  std::string_view title;
  std::string (*text)(const TraceStep&);
};

constexpr std::size_t kLetters = 3;
const Column kColumns[] = {
    {"step", [](const TraceStep& step) { return step.step; }},
    {"where", [](const TraceStep& step) { return step.where; }},
    {"shape", [](const TraceStep& step) { return to_string(step.shape()); }},
    {"letters", [](const TraceStep& step) { return step.letters; }},
};

// For a terminal that is too narrow for columns: each step is a paragraph.
std::string narrow_table(std::span<const TraceStep> steps, std::size_t width) {
  const std::size_t start = cat(steps.size()).size() + kGap;
  std::string text;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const TraceStep& step = steps[i];
    append(text, hang(cat(i + 1), cat(step.step, "  ", step.shape()), start, width));
    append(text, cat(wrap(step.where, width, start + 2), wrap(step.meaning, width, start + 2)));
  }
  return text;
}

}  // namespace

std::string trace_table(std::span<const TraceStep> steps, std::size_t width) {
  const std::size_t number_width = cat(steps.size()).size();
  std::vector<std::size_t> widths;
  for (const Column& column : kColumns) {
    std::size_t longest = columns(column.title);
    for (const TraceStep& step : steps) longest = std::max(longest, columns(column.text(step)));
    widths.push_back(longest);
  }
  const auto start_of_meaning = [&](bool letters) {
    std::size_t start = number_width + kGap;
    for (std::size_t i = 0; i < widths.size(); ++i) start += i == kLetters && !letters ? 0 : widths[i] + kGap;
    return start;
  };
  const auto fits = [&](std::size_t start) { return width == SIZE_MAX || start + kSmallestMeaning <= width; };
  if (width != SIZE_MAX && start_of_meaning(false) > width) return narrow_table(steps, width);
  const bool below = !fits(start_of_meaning(false));
  const bool letters = below ? start_of_meaning(true) <= width : fits(start_of_meaning(true));
  const std::size_t start = start_of_meaning(letters);

  const auto line_of = [&](const std::string& number, const auto& cell) {
    std::string line = pad_left(number, number_width) + std::string(kGap, ' ');
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (i == kLetters && !letters) continue;
      append(line, pad_right(cell(kColumns[i]), widths[i]) + std::string(kGap, ' '));
    }
    return line;
  };
  const std::string title = line_of("", [](const Column& column) { return std::string(column.title); });
  std::string text = trimmed(below ? title : title + "meaning") + "\n";
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const TraceStep& step = steps[i];
    const std::string line = line_of(cat(i + 1), [&](const Column& column) { return column.text(step); });
    if (below) {
      append(text, trimmed(line) + "\n" + wrap(step.meaning, width, number_width + kGap + 2));
    } else {
      append(text, hang(line, step.meaning, start, width));
    }
  }
  return text;
}

std::string legend(const nn::MultiHeadAttentionConfig& config, const Shape& weights, std::int64_t keys) {
  std::string text = "Letters: ";  // as in TraceStep::letters
  const Shape lead = weights.first(weights.size() - 3);
  if (lead.size() == 1) append(text, cat("B = ", counted(lead[0], "sequence"), ", "));
  for (int i = 0; lead.size() > 1 && i < lead.size(); ++i) append(text, cat("B", i + 1, " = ", lead[i], i + 1 < lead.size() ? ", " : " leading dimensions, "));
  append(text, cat("N = ", counted(config.heads, "head"), config.kv_heads != config.heads ? cat(", K = ", counted(config.kv_heads, "key/value head")) : ""));
  if (config.global_query == nn::GlobalQuery::off) {
    append(text, cat(", T = ", weights[-2], weights[-2] == 1 ? " query" : " queries"));
  } else {
    append(text, cat(", T = ", counted(weights[-1], "position")));
  }
  append(text, cat(", S = ", counted(keys, "key"), ", H = ", counted(config.head_width, "feature"), " of a query and key in a head, V = ",
                   config.value_head_width, " of a value, E... = widths of the layer's inputs and output"));
  return text;
}

Json trace_json(std::span<const TraceStep> steps, bool values) {
  Json list = Json::array();
  for (const TraceStep& step : steps) {
    Json entry{{"step", step.step},       {"where", step.where},     {"shape", to_json(step.shape())},
               {"letters", step.letters}, {"meaning", step.meaning}, {"dtype", info(step.value.dtype()).name}};
    if (values) entry["values"] = number_json(step.value);
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace polyhead::app
