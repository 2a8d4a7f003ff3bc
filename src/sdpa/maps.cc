// The operations of maps.h whose outputs have a row for each query: maps, windows, top keys, and mass on sets of keys.
#include "polyhead/maps.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>

#include "reference/row.h"
#include "sdpa/map_walk.h"
#include "sdpa/row_sums.h"

namespace polyhead {
namespace {

using reference::store_row;

// Writes the map row of queries[i] of every head to out (b, n, i, :).
void write_rows(const MapWalk& walk, std::span<const std::int64_t> queries, TensorView out) {
  const bool direct = walk.backend.write_maps != nullptr && (out.dtype() == DType::f64) == (walk.problem.dtype == DType::f64);
  if (!direct) return walk.for_each_row(queries, [&](std::int64_t b, std::int64_t n, const MapRow& row) { store_row(out, b, n, row.index, row.values.data()); });
  walk.for_each_chunk(static_cast<std::int64_t>(queries.size()), [&](std::int64_t b, std::int64_t n, std::int64_t first, std::int64_t last) {
    walk.backend.write_maps(walk.problem, b, n, MapWalk::part(queries, first, last), out.slice(-2, first, last));
  });
}

// Selects the k keys of a row with the largest attention weights, largest first. Of keys with equal attention weights the key with the smaller index comes first.
class Largest {
 public:
  explicit Largest(std::int64_t count) : count_(count) {}

  std::span<const std::int64_t> of(const MapRow& row) {
    if (count_ == 0) return {};
    // Keys outside of row.keys have probability 0, so they are searched only if row.keys holds fewer than `count` keys.
    if (row.keys.last - row.keys.first >= count_) {
      select(row, row.keys);
      if (row.values[static_cast<std::size_t>(keys_.back())] != 0) return keys_;
    }
    select(row, {0, static_cast<std::int64_t>(row.values.size())});
    return keys_;
  }

 private:
  // Largest number of candidates that select_few() sorts. To sort them, it counts for each candidate how many others are larger, so its time is quadratic.
  static constexpr std::size_t kFew = 64;

  void select(const MapRow& row, KeyRange range) {
    if (!std::isnan(row.entropy) && count_ <= 48 && select_few(row.values.data(), range)) return;
    select_any(row, range);
  }

  // Selects the keys whose attention weight is at least a bound, and sorts them. Returns false if some values are equal or too many keys reach the bound. To
  // choose the bound, the keys are divided into short groups and the maximum of each group is computed; about count_ maxima reach the bound. A group consists
  // of every eighth key of a block, so that a vector of maxima needs no reduction to one number. The loops over keys have no branches, because the processor
  // could not predict which keys are large.
  bool select_few(const double* p, KeyRange range) {
    const std::int64_t size = range.last - range.first, length = std::clamp<std::int64_t>(size / (4 * count_), 1, 32);  // length: number of values in a group
    maxima_.resize(static_cast<std::size_t>((size + 8 * length - 1) / (8 * length) * 8));
    double* maxima = maxima_.data();
    for (std::int64_t s = range.first; s < range.last; s += 8 * length, maxima += 8) maxima_of_eighths(p, s, std::min(s + 8 * length, range.last), maxima);
    if (std::ssize(maxima_) < count_) return false;
    auto [least, most] = extremes_of(maxima_.data(), std::ssize(maxima_));
    // If the bits of positive doubles are read as integers, the integers have the same order as the doubles. So a bisection of the bits finds a bound of any
    // exponent in at most 63 steps. At least count_ maxima always reach the lower end.
    for (std::int64_t low = std::bit_cast<std::int64_t>(least), high = std::bit_cast<std::int64_t>(most) + 1; high - low > 1;) {
      const std::int64_t middle = low + (high - low) / 2, reached = count_of(maxima_.data(), std::ssize(maxima_), std::bit_cast<double>(middle));
      (reached >= count_ ? low : high) = middle;
      least = std::bit_cast<double>(low);
      if (count_ <= reached && reached <= count_ + count_ / 4) break;
    }
    if (least <= 0) return false;
    std::array<double, kFew + 64> values;
    std::array<std::int64_t, kFew + 64> candidates;
    std::size_t found = 0;
    for (std::size_t i = 0; i < maxima_.size(); ++i) {
      if (maxima_[i] < least) continue;
      const auto group = static_cast<std::int64_t>(i);
      const std::int64_t first = range.first + group / 8 * 8 * length + group % 8, last = std::min(first + 8 * length - group % 8, range.last);
      for (std::int64_t s = first; s < last; s += 8) {
        values[found] = p[s], candidates[found] = s;
        found += p[s] >= least ? 1 : 0;
      }
      if (found > kFew) return false;
    }
    const auto padded = static_cast<std::int64_t>((found + 7) / 8 * 8);
    std::fill(values.data() + found, values.data() + padded, 0.0);
    keys_.assign(found, -1);
    for (std::size_t i = 0; i < found; ++i) {
      std::int64_t& key = keys_[static_cast<std::size_t>(count_of(values.data(), padded, std::bit_cast<double>(std::bit_cast<std::int64_t>(values[i]) + 1)))];
      if (key >= 0) return false;  // true if two candidates have equal values
      key = candidates[i];
    }
    keys_.resize(static_cast<std::size_t>(count_));
    return true;
  }

  // Selects the keys in all other cases, for example if values are equal or NaN. The keys are divided into short blocks. The count-th largest maximum of a
  // block is a lower bound of the values to select, so only the few blocks whose maximum reaches it are searched.
  void select_any(const MapRow& row, KeyRange range) {
    const std::span<const double> p = row.values;
    const std::int64_t size = range.last - range.first;
    keys_.clear(), maxima_.clear();
    const std::int64_t block = std::clamp<std::int64_t>(size / (4 * count_) / 8 * 8, 8, 64);
    const bool finite = !std::isnan(row.entropy);  // if false, any value may be NaN, so all keys are sorted
    for (std::int64_t s = range.first; s < range.last && finite; s += block) maxima_.push_back(largest_of(p.data(), s, std::min(s + block, range.last)));
    double bound = -1;
    if (std::ssize(maxima_) >= count_) {
      order_ = maxima_;
      std::nth_element(order_.begin(), order_.begin() + (count_ - 1), order_.end(), std::greater<>());
      bound = order_[static_cast<std::size_t>(count_ - 1)];
    }
    const auto collect = [&](const auto& wanted) {
      for (std::int64_t s = range.first; s < range.last; s += block) {
        if (finite && !wanted(maxima_[static_cast<std::size_t>((s - range.first) / block)], true)) continue;
        for (std::int64_t i = s; i < std::min(s + block, range.last); ++i) {
          if (wanted(p[static_cast<std::size_t>(i)], false)) keys_.push_back(i);
        }
      }
    };
    collect([&](double x, bool) { return !(x <= bound); });
    // If several keys have a value equal to the bound, those with the smallest indices are taken.
    if (std::ssize(keys_) < count_) collect([&](double x, bool of_block) { return std::ssize(keys_) < count_ && (of_block ? x >= bound : x == bound); });
    const auto before = [&](std::int64_t x, std::int64_t y) {
      const double a = p[static_cast<std::size_t>(x)], b = p[static_cast<std::size_t>(y)];
      // NaN counts as larger than any number, so that the order is well defined and a NaN of the row appears in the result.
      if (std::isnan(a) != std::isnan(b)) return std::isnan(a);
      return a != b && !std::isnan(a) ? a > b : x < y;
    };
    std::partial_sort(keys_.begin(), keys_.begin() + count_, keys_.end(), before);
    keys_.resize(static_cast<std::size_t>(count_));
  }

  std::int64_t count_;
  std::vector<std::int64_t> keys_;
  std::vector<double> maxima_, order_;
};

}  // namespace

void attention_map(const MapsInput& input, TensorView out, const SdpaOptions& options, MapValue value) {
  const MapWalk walk("attention_map", input, options, value);
  walk.check_output(out, {walk.problem.queries, walk.problem.keys}, "[*,N,T,S]");
  write_rows(walk, walk.all_queries(), out);
}

void attention_map_rows(const MapsInput& input, std::span<const std::int64_t> queries, TensorView out, const SdpaOptions& options, MapValue value) {
  const MapWalk walk("attention_map_rows", input, options, value);
  walk.check_queries(queries);
  walk.check_output(out, {static_cast<std::int64_t>(queries.size()), walk.problem.keys}, "[*,N,R,S]");
  write_rows(walk, queries, out);
}

void attention_map_part(const MapsInput& input, std::span<const std::int64_t> queries, std::span<const std::int64_t> keys, TensorView out,
                        const SdpaOptions& options, MapValue value) {
  const MapWalk walk("attention_map_part", input, options, value);
  walk.check_queries(queries);
  for (const std::int64_t s : keys) require(0 <= s && s < walk.problem.keys, "attention_map_part: there is no key ", s, "; keys lie in [0,", walk.problem.keys, ")");
  walk.check_output(out, {static_cast<std::int64_t>(queries.size()), static_cast<std::int64_t>(keys.size())}, "[*,N,R,C]");
  walk.for_each_row(queries, [&](std::int64_t b, std::int64_t n, const MapRow& row) {
    std::vector<double> values;
    values.reserve(keys.size());
    for (const std::int64_t s : keys) values.push_back(row.values[static_cast<std::size_t>(s)]);
    store_row(out, b, n, row.index, values.data());
  });
}

void attention_windows(const MapsInput& input, std::int64_t first, TensorView out, const SdpaOptions& options) {
  const MapWalk walk("attention_windows", input, options);
  const std::int64_t width = walk.last_extent(out, "out", "[*,N,T,W]"), most = walk.problem.queries + walk.problem.keys;
  walk.check_output(out, {walk.problem.queries, width}, "[*,N,T,W]");
  require(-most <= first && first <= most, "attention_windows: first is ", first, "; it must lie in [-(T + S),T + S] = [", -most, ",", most, "]");
  walk.for_each_row(walk.all_queries(), [&](std::int64_t b, std::int64_t n, const MapRow& row) {
    const Document& document = document_of(walk.problem, row.index);
    const std::int64_t start = document.keys.first + row.index - document.queries.first + first;  // the key of element 0 of the row
    std::vector<double> values(static_cast<std::size_t>(width));
    for (std::int64_t s = std::max(start, document.keys.first); s < std::min(start + width, document.keys.last); ++s)
      values[static_cast<std::size_t>(s - start)] = row.values[static_cast<std::size_t>(s)];
    store_row(out, b, n, row.index, values.data());
  });
}

void attention_top_keys(const MapsInput& input, TensorView probability, TensorView key, const SdpaOptions& options) {
  const MapWalk walk("attention_top_keys", input, options);
  const std::int64_t count = probability ? probability.shape().empty() ? 0 : probability.extent(-1) : 0;
  walk.check_shape(probability, {walk.problem.queries, count}, "probability", "[*,N,T,k]", DTypeKind::floating);
  walk.check_shape(key, {walk.problem.queries, count}, "key", "[*,N,T,k]", DTypeKind::integer);
  require(key.dtype() == DType::i64, "attention_top_keys: key is ", key.dtype(), "; it must be int64");
  walk.check_memory(std::array{Operand{"probability", probability}, Operand{"key", key}});
  require(count <= walk.problem.keys, "attention_top_keys: ", count, " keys per row were requested, but there are only S = ", walk.problem.keys);
  const std::vector<std::int64_t> queries = walk.all_queries();
  walk.for_each_chunk(walk.problem.queries, [&](std::int64_t b, std::int64_t n, std::int64_t first, std::int64_t last) {
    Largest largest(count);
    std::vector<double> values(static_cast<std::size_t>(count));
    const auto keys = head_slice<std::int64_t>(key, b, n);
    walk.backend.map_rows(walk.problem, b, n, MapWalk::part(queries, first, last), [&](const MapRow& row) {
      std::int64_t i = 0;
      for (const std::int64_t s : largest.of(row)) {
        values[static_cast<std::size_t>(i)] = row.values[static_cast<std::size_t>(s)];
        keys(first + row.index, i++) = s;
      }
      store_row(probability, b, n, first + row.index, values.data());
    });
  });
}

void attention_key_mass(const MapsInput& input, ConstTensorView key_sets, TensorView out, const SdpaOptions& options) {
  MapWalk walk("attention_key_mass", input, options);
  require(static_cast<bool>(key_sets), "attention_key_mass: key_sets is missing");
  require(key_sets.dtype() == DType::boolean, "attention_key_mass: key_sets is ", key_sets.dtype(), "; it must be bool");
  const std::int64_t count = key_sets.rank() < 2 ? 1 : key_sets.extent(-2);
  const Shape wanted = appended(walk.problem.lead, {count, walk.problem.keys});
  bool fits = 1 <= key_sets.rank() && key_sets.rank() <= wanted.size();
  for (int axis = 1; fits && axis <= key_sets.rank(); ++axis) fits = key_sets.extent(-axis) == 1 || key_sets.extent(-axis) == wanted[-axis];
  require(fits, "attention_key_mass: key_sets is ", key_sets.shape(), "; it must be [S], or broadcast to [*,M,S] = ", wanted);
  walk.add_input({"key_sets", key_sets});
  walk.check_output(out, {walk.problem.queries, count}, "[*,N,T,M]");
  const ConstTensorView sets = key_sets.expand(wanted).unsqueeze(-3);  // [*,1,M,S]
  const std::vector<std::int64_t> queries = walk.all_queries();
  walk.for_each_chunk(walk.problem.queries, [&](std::int64_t b, std::int64_t n, std::int64_t first, std::int64_t last) {
    const auto in_set = head_slice<const std::uint8_t>(sets, b, 0);
    std::vector<std::vector<std::size_t>> keys(static_cast<std::size_t>(count));
    for (std::int64_t m = 0; m < count; ++m) {
      for (std::int64_t s = 0; s < walk.problem.keys; ++s) {
        if (in_set(m, s) != 0) keys[static_cast<std::size_t>(m)].push_back(static_cast<std::size_t>(s));
      }
    }
    std::vector<double> mass(keys.size());
    walk.backend.map_rows(walk.problem, b, n, MapWalk::part(queries, first, last), [&](const MapRow& row) {
      for (std::size_t m = 0; m < keys.size(); ++m) {
        double sum = 0;
        for (const std::size_t s : keys[m]) sum += row.values[s];
        mass[m] = sum;
      }
      store_row(out, b, n, first + row.index, mass.data());
    });
  });
}

}  // namespace polyhead
