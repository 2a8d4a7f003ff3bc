// Numbers of queries or keys on the command line: "0,5,10:20".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace polyhead::app {

struct IndexRange {
  std::int64_t first = 0;
  std::optional<std::int64_t> last = {};  // one after the last index of the range; absent if the range has no end
};
using IndexList = std::vector<IndexRange>;

IndexList read_index_list(const std::string& word);
std::vector<IndexList> read_index_lists(const std::string& word);  // reads several lists that are separated by semicolons

// All indices of the list. UsageError unless each lies in [0, count); `what` names the indexed thing in errors, such as "key".
std::vector<std::int64_t> indices(const IndexList& list, std::int64_t count, const char* option, const char* what);

}  // namespace polyhead::app
