#include "view_link.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "command.h"
#include "core/text.h"
#include "format.h"
#include "json.h"
#include "text_layout.h"
#include "view_input.h"

namespace polyhead::app {
namespace {

constexpr double kMostly = 0.5;       // a head whose usual weight is at least this is marked: it looks at this distance whatever the words are
constexpr std::size_t kMostRows = 12;  // largest number of heads in the terminal's list

std::string distance_name(std::int64_t distance) {
  if (distance == 0) return "at itself";
  return cat(counted(distance < 0 ? -distance : distance, "token"), distance < 0 ? " back" : " ahead");
}

}  // namespace

std::string WordLink::address() const { return cat("#row=", query, "&column=", key); }

WordLink read_link(const std::string& given, const std::vector<std::string>& queries, const std::vector<std::string>& keys, bool same_text) {
  const std::size_t comma = given.find(',', 1);  // a comma may itself be the query
  if (comma == std::string::npos || comma + 1 == given.size()) throw UsageError(cat("--link: '", given, "' is not QUERY,KEY, such as 3,4 or quick,fox"));
  return {.query = find_token("--link", "query", given.substr(0, comma), queries, queries), .key = find_token("--link", "key", given.substr(comma + 1), keys, keys), .same_text = same_text};
}

void rank_heads(WordLink& link, const Tensor& attentions, const std::vector<bool>& special) {
  const ConstTensorView all = attentions.view();
  const std::int64_t rows = all.extent(2), columns = all.extent(3), distance = link.key - link.query;
  const auto is_special = [&](std::int64_t place) { return static_cast<bool>(special[static_cast<std::size_t>(place)]); };
  const bool with_special = link.same_text && (is_special(link.query) || is_special(link.key));
  for (std::int64_t layer = 0; layer < all.extent(0); ++layer)
    for (std::int64_t head = 0; head < all.extent(1); ++head) {
      const Tensor map = Tensor::copy_of(all.select(0, layer).select(0, head), DType::f64);
      const auto weight = [&](std::int64_t t, std::int64_t s) { return map.data<double>()[t * columns + s]; };
      double sum = 0, count = 0;
      for (std::int64_t t = 0; link.same_text && t < rows; ++t) {
        const std::int64_t s = t + distance;
        if (s < 0 || s >= columns || t == link.query || (!with_special && (is_special(t) || is_special(s)))) continue;
        sum += weight(t, s), ++count;
      }
      link.heads.push_back({.layer = layer, .head = head, .weight = weight(link.query, link.key), .usual = count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN()});
    }
  std::ranges::stable_sort(link.heads, std::ranges::greater(), &LinkedHead::weight);
}

std::string describe(const WordLink& link, const std::vector<std::string>& queries, const std::vector<std::string>& keys, std::size_t width) {
  const auto word = [](const std::vector<std::string>& words, std::int64_t place) { return printable(words[static_cast<std::size_t>(place)]); };
  const std::string where = distance_name(link.key - link.query);
  const bool has_usual = std::ranges::any_of(link.heads, [](const LinkedHead& head) { return !std::isnan(head.usual); });
  std::string text = wrap(cat("heads by their attention weight from ", word(queries, link.query), " to ", word(keys, link.key), has_usual ? cat("; usual: the mean weight that the head gives ", where, " elsewhere in this text") : ""), width);
  std::vector<std::vector<std::string>> rows{{"head", "weight"}};
  if (has_usual) rows[0].push_back("usual");
  for (const auto& [layer, head, weight, usual] : link.heads) {
    if (rows.size() > kMostRows) break;
    rows.push_back({cat(layer, ".", head), fixed(weight, 4)});
    if (!has_usual) continue;
    rows.back().push_back(fixed(usual, 4));
    rows.back().push_back(usual >= kMostly ? cat("mostly looks ", where) : "");
  }
  text += "\n";
  for (const std::string& line : aligned(rows)) text += clip(trimmed(line), width) + "\n";
  if (link.heads.size() >= rows.size()) text += wrap(cat("These are ", rows.size() - 1, " of ", link.heads.size(), " heads; --json has all, and -o writes a page with their maps."), width);
  return text;
}

nlohmann::json to_json(const WordLink& link) {
  Json heads = Json::array();
  for (const auto& [layer, head, weight, usual] : link.heads) heads.push_back({{"layer", layer}, {"head", head}, {"weight", weight}, {"usual", std::isnan(usual) ? Json(nullptr) : Json(usual)}});
  return {{"query", link.query}, {"key", link.key}, {"heads", std::move(heads)}};
}

}  // namespace polyhead::app
