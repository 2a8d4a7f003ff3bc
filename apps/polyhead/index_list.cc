#include "index_list.h"

#include <algorithm>

#include "arguments.h"
#include "format.h"

namespace polyhead::app {
namespace {

std::vector<std::string> split(const std::string& word, char separator) {
  std::vector<std::string> parts;
  for (std::size_t first = 0; first <= word.size();) {
    const std::size_t end = std::min(word.find(separator, first), word.size());
    parts.push_back(word.substr(first, end - first));
    first = end + 1;
  }
  return parts;
}

}  // namespace

IndexList read_index_list(const std::string& word) {
  IndexList list;
  for (const std::string& part : split(word, ',')) {
    const std::size_t colon = part.find(':');
    const std::string left = part.substr(0, colon), right = colon == std::string::npos ? "" : part.substr(colon + 1);
    const auto first = colon == 0 ? 0 : parse<std::int64_t>(left), last = parse<std::int64_t>(right);
    const bool fits = first && *first >= 0 && *first < INT64_MAX && (right.empty() || (last && *first <= *last));
    if (!fits) throw UsageError(cat("'", word, "' is not a list of numbers and ranges FIRST:LAST without LAST, such as 0,5,10:20"));
    list.push_back({*first, colon == std::string::npos ? *first + 1 : right.empty() ? std::nullopt : last});
  }
  return list;
}

std::vector<IndexList> read_index_lists(const std::string& word) {
  std::vector<IndexList> lists;
  for (const std::string& part : split(word, ';')) lists.push_back(read_index_list(part));
  return lists;
}

std::vector<std::int64_t> indices(const IndexList& list, std::int64_t count, const char* option, const char* what) {
  std::vector<std::int64_t> numbers;
  for (const IndexRange& range : list) {
    const std::int64_t last = range.last.value_or(std::max(count, range.first));
    if (last > count || range.first > count) throw UsageError(cat(option, ": there is no ", what, " ", std::max(last - 1, range.first), "; there are ", counted(count, what)));
    for (std::int64_t i = range.first; i < last; ++i) numbers.push_back(i);
  }
  return numbers;
}

}  // namespace polyhead::app
