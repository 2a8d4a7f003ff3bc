#include "view_measures.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/join.h"
#include "core/text.h"
#include "format.h"
#include "text_layout.h"

namespace polyhead::app {
namespace {

using viewer::MeasuredTexts;

// The heads in which a measure is defined, the largest mean first.
std::vector<std::pair<std::int64_t, std::int64_t>> ranked(const MeasuredTexts& measured, std::size_t measure) {
  std::vector<std::pair<std::int64_t, std::int64_t>> heads;
  for (std::int64_t layer = 0; layer < measured.layers(); ++layer)
    for (std::int64_t head = 0; head < measured.heads(); ++head)
      if (measured.value(layer, head, measure).count > 0) heads.emplace_back(layer, head);
  std::ranges::stable_sort(heads, std::ranges::greater(), [&](const auto& head) { return measured.value(head.first, head.second, measure).mean; });
  return heads;
}

std::string name_of(const std::pair<std::int64_t, std::int64_t>& head) { return cat(head.first, ".", head.second); }

}  // namespace

std::string describe(const MeasuredTexts& measured, std::size_t width) {
  constexpr std::size_t kShown = 3;
  std::string text = wrap(cat(counted(measured.texts(), "text"), " of ", measured.shortest(), " to ", measured.longest(), " tokens; ", counted(measured.layers() * measured.heads(), "head"), ". Largest means, as layer.head mean ± standard deviation over the texts:"), width);
  text += '\n';
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < viewer::head_measures().size(); ++i) {
    std::vector<std::string> row{std::string(viewer::head_measures()[i].title)};
    for (const auto& head : ranked(measured, i)) {
      const MeasuredTexts::Value& of = measured.value(head.first, head.second, i);
      if (row.size() <= kShown) row.push_back(cat(name_of(head), " ", fixed(of.mean, 2), of.count > 1 ? cat(" ± ", fixed(of.spread(), 2)) : ""));
    }
    if (row.size() == 1) row.emplace_back("not defined in any text");
    rows.push_back(std::move(row));
  }
  for (const std::string& line : aligned(rows)) append(text, cat(clip(line, width), "\n"));
  append(text, cat("\n", wrap("Names, which hold in at least 9 of 10 texts (of at least 5):", width)));
  bool any = false;
  for (std::size_t i = 0; i < viewer::head_measures().size(); ++i) {
    std::vector<std::string> named;
    for (const auto& head : ranked(measured, i))
      if (measured.names(head.first, head.second, i)) named.push_back(name_of(head));
    any |= !named.empty();
    const viewer::HeadMeasure& measure = viewer::head_measures()[i];
    if (!named.empty()) append(text, wrap(cat(measure.title, " (at least ", fixed(measure.named_from, 2), "): ", join(named)), width));
  }
  if (!any) text += "no head has one\n";
  return text;
}

Json to_json(const MeasuredTexts& measured) {
  const auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); };
  Json values = Json::object();
  for (std::size_t i = 0; i < viewer::head_measures().size(); ++i) {
    Json& layers = values[std::string(viewer::head_measures()[i].name)] = Json::array();
    for (std::int64_t layer = 0; layer < measured.layers(); ++layer) {
      layers.push_back(Json::array());
      for (std::int64_t head = 0; head < measured.heads(); ++head) {
        const MeasuredTexts::Value& of = measured.value(layer, head, i);
        layers.back().push_back({{"mean", of.count > 0 ? number(of.mean) : Json(nullptr)}, {"spread", number(of.spread())}, {"texts", of.count}, {"held", of.held}, {"named", measured.names(layer, head, i)}});
      }
    }
  }
  return {{"texts", measured.texts()}, {"tokens", {measured.shortest(), measured.longest()}}, {"values", std::move(values)}};
}

}  // namespace polyhead::app
