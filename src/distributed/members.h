// A subset of the ranks of a call. Members are numbered from 0.
#pragma once

#include <algorithm>
#include <vector>

#include "distributed/call.h"

namespace polyhead::distributed {

struct Members {
  std::vector<int> ranks;
  int me = 0;  // this rank's number among the members

  int size() const { return static_cast<int>(ranks.size()); }
  int rank(int member) const { return ranks[static_cast<std::size_t>(member)]; }
};

// Returns the ranks first, first + step, …, `count` of them.
inline Members members(int first, int step, int count, int rank) {
  Members result;
  for (int i = 0; i < count; ++i) result.ranks.push_back(first + i * step);
  result.me = static_cast<int>(std::find(result.ranks.begin(), result.ranks.end(), rank) - result.ranks.begin());
  return result;
}

}  // namespace polyhead::distributed
