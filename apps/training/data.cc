#include "training/data.h"

#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/text.h"
#include "training/draw.h"

namespace polyhead::training {
namespace {

std::optional<double> rating_of(std::string_view text) {
  for (const auto& [name, value] : {std::pair<std::string_view, double>{"negative", -1}, {"neutral", 0}, {"positive", 1}})
    if (text == name) return value;
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(std::abs(value) <= 4)) return {};
  return value;
}

std::string trimmed(std::string_view text) {
  const auto words = split_at_white_space(text);
  return words.empty() ? "" : std::string(words.front().data(), words.back().data() + words.back().size());
}

std::string columns_expected(std::string_view what, std::size_t given) { return cat("the line has ", given, given == 1 ? " column" : " columns", "; expected: ", what); }

std::optional<Link> link_of(std::string_view text) {
  Link link{};
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, link.source);
  if (first.ec != std::errc() || first.ptr == end || (*first.ptr != '-' && *first.ptr != 'p')) return {};
  link.sure = *first.ptr == '-';
  const auto second = std::from_chars(first.ptr + 1, end, link.target);
  if (second.ec != std::errc() || second.ptr != end) return {};
  return link;
}

std::vector<std::string> strings(const nlohmann::json& object, const char* key) {
  std::vector<std::string> result;
  for (const auto& value : object.at(key)) result.push_back(trimmed(value.get<std::string>()));
  return result;
}

}  // namespace

Data<Rating> read_ratings(const std::filesystem::path& path) {
  Data<Rating> data;
  data.bad = read_lines(path, [&](std::string_view line) -> std::string {
    const auto columns = split(line, '\t');
    if (columns.size() != 2 && columns.size() != 4) return columns_expected("rating TAB set TAB id TAB text, or rating TAB text", columns.size());
    const auto rating = rating_of(columns[0]);
    if (!rating) return cat("the rating is \"", columns[0].substr(0, 20), "\"; expected: a number from -4 to 4, positive, neutral or negative");
    const bool full = columns.size() == 4;
    std::string text = trimmed(columns.back());
    if (text.empty()) return "the text is empty";
    data.rows.push_back({*rating, std::string(full ? columns[1] : ""), std::string(full ? columns[2] : ""), std::move(text)});
    return "";
  });
  return data;
}

Data<SentencePair> read_pairs(const std::filesystem::path& path) {
  Data<SentencePair> data;
  data.bad = read_lines(path, [&](std::string_view line) -> std::string {
    const auto columns = split(line, '\t');
    if (columns.size() != 2) return columns_expected("source TAB target", columns.size());
    SentencePair pair{trimmed(columns[0]), trimmed(columns[1])};
    if (pair.source.empty() || pair.target.empty()) return cat("the ", pair.source.empty() ? "source" : "target", " is empty");
    data.rows.push_back(std::move(pair));
    return "";
  });
  return data;
}

std::vector<Translations> group_by_source(const std::vector<SentencePair>& pairs) {
  std::vector<Translations> groups;
  std::map<std::string_view, std::size_t> known;
  for (const SentencePair& pair : pairs) {
    const auto [at, added] = known.try_emplace(pair.source, groups.size());
    if (added) groups.push_back({pair.source, {}});
    groups[at->second].targets.push_back(pair.target);
  }
  return groups;
}

Data<AlignedPair> read_aligned_pairs(const std::filesystem::path& path) {
  Data<AlignedPair> data;
  data.bad = read_lines(path, [&](std::string_view line) -> std::string {
    const auto columns = split(line, '\t');
    if (columns.size() != 3) return columns_expected("tokens TAB tokens TAB links", columns.size());
    AlignedPair pair;
    for (const auto token : split_at_white_space(columns[0])) pair.source.emplace_back(token);
    for (const auto token : split_at_white_space(columns[1])) pair.target.emplace_back(token);
    if (pair.source.empty() || pair.target.empty()) return cat("the ", pair.source.empty() ? "source" : "target", " is empty");
    for (const auto text : split_at_white_space(columns[2])) {
      const auto link = link_of(text);
      if (!link) return cat("the link \"", text.substr(0, 20), "\" is not i-j or ipj");
      if (link->source < 0 || link->source >= std::ssize(pair.source) || link->target < 0 || link->target >= std::ssize(pair.target))
        return cat("the link ", text, " is outside of ", pair.source.size(), " source and ", pair.target.size(), " target tokens");
      pair.links.push_back(*link);
    }
    data.rows.push_back(std::move(pair));
    return "";
  });
  return data;
}

Data<Abstract> read_abstracts(const std::filesystem::path& path) {
  Data<Abstract> data;
  data.bad = read_lines(path, [&](std::string_view line) -> std::string {
    try {
      const auto object = nlohmann::json::parse(line);
      Abstract row{.sentences = strings(object, "source"), .targets = strings(object, "target"), .labels = {}};
      if (const auto labels = object.find("source_labels"); labels != object.end() && !labels->is_null())
        row.labels = labels->get<std::vector<double>>();
      for (const auto* texts : {&row.sentences, &row.targets})
        for (const std::string& text : *texts)
          if (text.empty() || text.find('\0') != text.npos) return text.empty() ? "a sentence is empty" : "a sentence has a NUL character";
      if (row.sentences.empty() || row.targets.empty()) return cat("`", row.sentences.empty() ? "source" : "target", "` is empty");
      if (!row.labels.empty() && row.labels.size() != row.sentences.size())
        return cat("`source_labels` has ", row.labels.size(), " numbers for ", row.sentences.size(), " sentences");
      data.rows.push_back(std::move(row));
      return "";
    } catch (const nlohmann::json::parse_error&) {
      return "the line is not JSON";
    } catch (const nlohmann::json::exception&) {
      return "the line is not an object with `source` and `target`, lists of strings, and optionally `source_labels`, a list of numbers";
    }
  });
  return data;
}

bool in_validation(std::string_view key, double share) {
  return uniform(fnv1a(key), 0) < share;
}

}  // namespace polyhead::training
