#include "trace_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "format.h"
#include "text_layout.h"

namespace polyhead::app {
namespace {

constexpr std::size_t kColumnGap = 2, kSmallestMeaning = 44;

// Formats each step as a paragraph, for a terminal that is too narrow for columns.
std::string narrow_table(std::span<const TraceStep> steps, std::size_t width) {
  const std::size_t start = cat(steps.size()).size() + kColumnGap;
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
  std::vector<std::vector<std::string>> rows{{"", "step", "where", "shape"}};
  for (const TraceStep& step : steps) rows.push_back({cat(rows.size()), step.step, step.where, to_string(step.shape())});
  std::vector<std::string> lines = aligned(rows, 0);
  rows[0].emplace_back("letters");
  for (std::size_t i = 0; i < steps.size(); ++i) rows[i + 1].push_back(steps[i].letters);
  const std::vector<std::string> with_letters = aligned(rows, 0);

  const auto start_of_meaning = [](const std::vector<std::string>& all) {
    std::size_t longest = 0;
    for (const std::string& line : all) longest = std::max(longest, columns(line));
    return longest + kColumnGap;
  };
  const auto fits = [&](std::size_t start) { return width == SIZE_MAX || start + kSmallestMeaning <= width; };
  std::size_t start = start_of_meaning(lines);
  if (start > width) return narrow_table(steps, width);
  const bool below = !fits(start);
  if (const std::size_t later = start_of_meaning(with_letters); below ? later <= width : fits(later)) {
    lines = with_letters;
    start = later;
  }
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!below) {
      append(text, hang(lines[i], i == 0 ? "meaning" : steps[i - 1].meaning, start, width));
    } else {
      append(text, trimmed(lines[i]) + "\n");
      if (i > 0) append(text, wrap(steps[i - 1].meaning, width, cat(steps.size()).size() + kColumnGap + 2));
    }
  }
  return text;
}

std::string legend(const nn::MultiHeadAttentionConfig& config, const Shape& weights, std::int64_t keys) {
  std::string text = "Letters: ";  // explains the letters that TraceStep::letters uses
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
    for (const auto& [name, tensor] : step.parameters) {
      Json parameter{{"name", name}, {"shape", to_json(tensor.shape())}};
      if (values) parameter["values"] = number_json(tensor);
      entry["parameters"].push_back(std::move(parameter));
    }
    for (const SourceStep& part : step.source) {
      Json source{{"code", part.code}, {"shape", to_json(part.value.shape())}};
      if (values) source["values"] = number_json(part.value);
      entry["source"].push_back(std::move(source));
    }
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace polyhead::app
