#include "polyhead/distributed/slices.h"

#include "core/text.h"
#include "distributed/positions.h"

namespace polyhead::distributed {

std::vector<Positions> slice_of(SliceOrder order, std::int64_t length, int rank, int ranks) {
  require(length >= 0, "slice_of: the length is ", length, "; it must not be negative");
  require(ranks >= 1 && rank >= 0 && rank < ranks, "slice_of: rank is ", rank, " and ranks ", ranks, "; rank must lie in [0, ranks)");
  __extension__ using Wide = __int128;
  const int parts = order == SliceOrder::zigzag ? 2 * ranks : ranks;
  const auto part = [&](int i) {
    const auto bound = [&](int at) { return static_cast<std::int64_t>(Wide{length} * at / parts); };
    return Positions{bound(i), bound(i + 1)};
  };
  if (order == SliceOrder::contiguous) return joined({part(rank)});
  return joined({part(rank), part(2 * ranks - 1 - rank)});
}

std::int64_t slice_length(SliceOrder order, std::int64_t length, int rank, int ranks) { return count_of(slice_of(order, length, rank, ranks)); }

std::int64_t count_of(const std::vector<Positions>& ranges) {
  std::int64_t count = 0;
  for (const Positions& range : ranges) count += range.count();
  return count;
}

std::vector<Positions> joined(std::vector<Positions> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Positions& a, const Positions& b) { return a.first < b.first; });
  std::vector<Positions> result;
  for (const Positions& range : ranges) {
    if (range.count() == 0) continue;
    if (!result.empty() && range.first <= result.back().last) {
      result.back().last = std::max(result.back().last, range.last);
    } else {
      result.push_back(range);
    }
  }
  return result;
}

std::int64_t row_of(const std::vector<Positions>& ranges, std::int64_t position) {
  std::int64_t row = 0;
  for (const Positions& range : ranges) {
    if (position < range.last) return row + position - range.first;
    row += range.count();
  }
  return row;
}

std::vector<std::vector<Positions>> slices_of(SliceOrder order, const std::vector<std::int64_t>& lengths, const char* what, char letter) {
  const int ranks = static_cast<int>(lengths.size());
  std::int64_t total = 0;
  for (const std::int64_t length : lengths) total += length;
  std::vector<std::vector<Positions>> slices;
  std::int64_t first = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t length = lengths[static_cast<std::size_t>(rank)];
    if (order == SliceOrder::contiguous) {
      slices.push_back(joined({{first, first + length}}));
      first += length;
      continue;
    }
    slices.push_back(slice_of(order, total, rank, ranks));
    const std::int64_t wanted = count_of(slices.back());
    require(length == wanted, "rank ", rank, " has ", length, ' ', what, "; of ", letter, " = ", total, " in zigzag order over ", ranks, " ranks it must have ", wanted);
  }
  return slices;
}

}  // namespace polyhead::distributed
