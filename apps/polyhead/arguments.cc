#include "arguments.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "core/ascii.h"
#include "core/text.h"
#include "parser.h"
#include "suggest.h"

namespace polyhead::app {
namespace {

// Reads integers of at least `least`, which are separated by any of the characters in `separators`; `what` describes the list in errors.
std::vector<std::int64_t> integers_of(std::string_view word, std::string_view separators, std::int64_t least, std::string_view what) {
  std::vector<std::int64_t> counts;
  for (std::size_t first = 0; first <= word.size();) {
    const std::size_t end = std::min(word.find_first_of(separators, first), word.size());
    const auto count = parse<std::int64_t>(word.substr(first, end - first));
    if (!count || *count < least) throw UsageError(cat("'", word, "' is not ", what));
    counts.push_back(*count);
    first = end + 1;
  }
  return counts;
}

}  // namespace

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), lower_ascii);
  return result;
}

std::int64_t read_integer(const std::string& word) {
  if (const auto value = parse<std::int64_t>(word)) return *value;
  throw UsageError(cat("'", word, "' is not a whole number"));
}

std::int64_t read_count(const std::string& word) {
  const auto value = parse<std::int64_t>(word);
  if (!value && !word.empty() && word.find_first_not_of("0123456789") == std::string::npos)
    throw UsageError(cat("'", word, "' is too large; it must be at most 2^63 - 1"));
  if (!value || *value < 0) throw UsageError(cat("'", word, "' is not a whole number of 0 or more"));
  return *value;
}

std::int64_t read_positive(const std::string& word) {
  const std::int64_t value = read_count(word);
  if (value == 0) throw UsageError("'0' is too small; it must be at least 1");
  return value;
}

std::uint64_t read_seed(const std::string& word) { return static_cast<std::uint64_t>(read_count(word)); }

std::vector<std::int64_t> read_counts(const std::string& word) {
  return integers_of(word, ",;", 0, "a list of whole numbers of 0 or more, such as 3,2");
}

std::vector<std::int64_t> read_integers(const std::string& word) {
  return integers_of(word, ",;", std::numeric_limits<std::int64_t>::min(), "a list of whole numbers, such as 3,-2");
}

double read_number(const std::string& word) {
  const auto value = parse<double>(word);
  if (!value || !std::isfinite(*value)) throw UsageError(cat("'", word, "' is not a finite number"));
  return *value;
}

Shape read_shape(const std::string& word) {
  if (word.empty()) return {};
  const std::vector<std::int64_t> extents =
      integers_of(word, ",", 0, "a shape; give whole numbers of 0 or more with commas between, such as 1,8,512,64");
  if (extents.size() > static_cast<std::size_t>(kMaxRank))
    throw UsageError(cat("'", word, "' has ", extents.size(), " dimensions; at most ", kMaxRank, " are supported"));
  return Shape(std::span<const std::int64_t>(extents));
}

DType read_floating(const std::string& word) {
  std::vector<std::string> names;
  for (const DTypeInfo& row : kDTypes) {
    if (!is_floating(row.dtype)) continue;
    const std::string short_name = lower(row.safetensors);
    if (lower(word) == short_name || lower(word) == row.name) return row.dtype;
    names.push_back(short_name);
    names.emplace_back(row.name);
  }
  throw UsageError(unknown_name(word, "floating dtype", names));
}

std::string read_choice(const std::string& word, std::string_view what, std::span<const std::string> names) {
  if (std::find(names.begin(), names.end(), word) == names.end()) throw UsageError(unknown_name(word, what, names));
  return word;
}

bool read_weighting(const std::string& word) {
  static const std::array<std::string, 2> kNames{"attention", "norm"};
  return read_choice(word, "weighting", kNames) == "norm";
}

Option* add_word(Parser& parser, const std::string& name, std::function<void(const std::string&)> take, const std::string& type,
                      const std::string& description) {
  const auto named = [name, take = std::move(take)](const std::string& word) {
    try {
      take(word);
    } catch (const std::exception& error) {
      const std::string_view longer = std::string_view(name).substr(name.find("--"));
      throw UsageError(cat(longer.substr(0, longer.find(',')), ": ", error.what()));
    }
  };
  return parser.add_option(name, named, description)->type_name(type);
}

}  // namespace polyhead::app
