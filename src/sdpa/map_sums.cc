// The operations of maps.h that sum over the queries of a head: statistics, key sums, pooled maps and the divergence of heads.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/interrupt.h"
#include "polyhead/maps.h"
#include "reference/row.h"
#include "sdpa/map_walk.h"
#include "sdpa/row_sums.h"

namespace polyhead {
namespace {

using reference::store_row;

// Stores the result of head n of sequence b. If `row` is true, the result is a row of an output [*,N,S], else one number of an output [*,N].
void store_head(TensorView out, std::int64_t b, std::int64_t n, const double* values, bool row) {
  store_row(row ? out.unsqueeze(-2) : out.unsqueeze(-1).unsqueeze(-1), b, n, 0, values);
}

void add_to(std::vector<double>& sums, const std::vector<double>& more) {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
}

enum Statistic : std::uint8_t { kEntropy, kLargest, kDistance, kFirstKey, kPreviousKey, kSameKey, kNextKey, kStatistics };

struct StatisticSums {
  const MapsProblem& problem;
  std::int64_t rows = 0;
  std::array<double, kStatistics> sums{};

  void add(std::int64_t t, const MapRow& row) {
    if (row.keys.empty()) return;
    ++rows;
    // Positions are counted from the start of the document, because a query and the key at the same position may have different indices in the packed sequence.
    const Document& document = document_of(problem, t);
    const std::int64_t same = document.keys.first + t - document.queries.first;
    const double* const p = row.values.data();
    const auto at = [&](std::int64_t s) { return document.keys.first <= s && s < document.keys.last ? p[s] : 0.0; };
    const double of_row[kStatistics] = {
        row.entropy, largest_of(p, row.keys.first, row.keys.last), sum_of_distances(p, row.keys.first, row.keys.last, same),
        at(document.keys.first), at(same - 1), at(same), at(same + 1)};
    for (std::size_t i = 0; i < kStatistics; ++i) sums[i] += of_row[i];
  }
  void merge(const StatisticSums& later) {
    rows += later.rows;
    for (std::size_t i = 0; i < kStatistics; ++i) sums[i] += later.sums[i];
  }
};

struct KeySums {
  std::vector<double> sums;
  void add(std::int64_t, const MapRow& row) {
    for (std::int64_t s = row.keys.first; s < row.keys.last; ++s) sums[static_cast<std::size_t>(s)] += row.values[static_cast<std::size_t>(s)];
  }
  void merge(const KeySums& later) { add_to(sums, later.sums); }
};

// A part of a pooled map: the rows to which some consecutive queries add, from row `first` on. Each row has `width` blocks.
struct PooledLines {
  const std::int64_t queries, keys, height, width;
  const Pooling pooling;
  std::int64_t first = 0;
  std::vector<double> lines{};

  void add(std::int64_t t, const MapRow& row) {
    const std::int64_t i = ((t + 1) * height - 1) / queries;  // the row of blocks with floor(i T/h) <= t < floor((i+1) T/h)
    if (lines.empty()) first = i;
    lines.resize(static_cast<std::size_t>((i + 1 - first) * width));
    double* const line = lines.data() + (i - first) * width;
    for (std::int64_t j = 0; j < width; ++j) {
      const std::int64_t begin = std::max(j * keys / width, row.keys.first), end = std::min((j + 1) * keys / width, row.keys.last);
      if (begin < end) join(line[j], pooling == Pooling::largest ? largest_of(row.values.data(), begin, end) : sum_of(row.values.data(), begin, end));
    }
  }
  void merge(const PooledLines& later) {
    lines.resize(std::max(lines.size(), static_cast<std::size_t>((later.first - first) * width) + later.lines.size()));
    double* const to = lines.data() + (later.first - first) * width;
    for (std::size_t i = 0; i < later.lines.size(); ++i) join(to[i], later.lines[i]);
  }
  void join(double& to, double x) const {
    if (pooling == Pooling::largest) {
      to = x > to || std::isnan(x) ? x : to;  // if an element of the block is NaN, the maximum is NaN
    } else {
      to += x;
    }
  }
};

// Two numbers for each pair of heads n < m of a sequence, in the order of (n, m): the sum of the divergences over the queries, and the number of these queries.
struct PairSums {
  std::vector<double> divergence, rows;
  explicit PairSums(std::int64_t heads) : divergence(static_cast<std::size_t>(heads * (heads - 1) / 2)), rows(divergence.size()) {}
  void merge(const PairSums& later) { add_to(divergence, later.divergence), add_to(rows, later.rows); }
};

// Returns -x log x, and 0 for x = 0.
double entropy_term(double x) { return x == 0 ? 0 : -x * std::log(x); }

// The rows of the attention maps of all heads for some queries, stored in type T.
template <class T>
class HeadRows {
 public:
  HeadRows(const MapWalk& walk, std::int64_t b, std::int64_t most) : walk_(walk), b_(b), most_(most), rows_(size(walk.problem.heads * most)), p_(rows_.size() * size(stride())) {}

  // Returns the number of rows computed at a time: as many as fit into 32 MiB, but at most 504. It is at least one strip of the kernels, so that packing the
  // keys costs less than computing the rows.
  static std::int64_t most(const MapsProblem& p) {
    const std::int64_t bytes = std::max<std::int64_t>(1, p.heads * (p.keys + 16) * static_cast<std::int64_t>(sizeof(T)));
    return std::clamp<std::int64_t>((std::int64_t{32} << 20) / bytes / 12 * 12, 12, 504);
  }

  void load(std::span<const std::int64_t> queries) {
    const MapsProblem& p = walk_.problem;
    for (std::int64_t n = 0; n < p.heads; ++n) {
      walk_.backend.map_rows(p, b_, n, queries, [&](const MapRow& row) {
        T* const to = p_.data() + (n * most_ + row.index) * stride();
        std::fill(std::transform(row.values.begin(), row.values.end(), to, [](double x) { return static_cast<T>(x); }), to + stride(), T{0});
        rows_[size(n * most_ + row.index)] = {row.keys, row.entropy + entropy_term(row.sink), row.sink};  // the sink counts as one more key
      });
    }
  }

  void add(std::int64_t count, PairSums& sums) const {
    std::size_t pair = 0;
    for (std::int64_t n = 0; n < walk_.problem.heads; ++n) {
      for (std::int64_t m = n + 1; m < walk_.problem.heads; ++m, ++pair) {
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t x = n * most_ + i, y = m * most_ + i;
          const Described &a = rows_[size(x)], &b = rows_[size(y)];
          if (a.keys.empty() || b.keys.empty()) continue;
          const std::int64_t first = std::min(a.keys.first, b.keys.first) / 16 * 16, last = std::max(a.keys.last, b.keys.last);
          const double mixed = walk_.backend.entropy_of_mean(sizeof(T) == 8 ? DType::f64 : DType::f32, p_.data() + x * stride() + first,
                                                           p_.data() + y * stride() + first, (last - first + 15) / 16 * 16);
          const double divergence = mixed + entropy_term((a.rest + b.rest) / 2) - (a.entropy + b.entropy) / 2;
          sums.divergence[pair] += divergence < 0 ? 0 : divergence;  // a divergence is not negative, but rounding may make it so
          ++sums.rows[pair];
        }
      }
    }
  }

 private:
  struct Described {
    KeyRange keys{0, 0};
    double entropy = 0, rest = 0;
  };
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
  std::int64_t stride() const { return (walk_.problem.keys + 15) / 16 * 16; }

  const MapWalk& walk_;
  std::int64_t b_, most_;
  std::vector<Described> rows_;
  std::vector<T> p_;
};

template <class T>
void add_pairs(const MapWalk& walk, std::span<const std::int64_t> queries, std::int64_t b, PairSums& sums) {
  const std::int64_t most = HeadRows<T>::most(walk.problem), count = static_cast<std::int64_t>(queries.size());
  HeadRows<T> rows(walk, b, std::min(most, count));
  for (std::int64_t first = 0; first < count; first += most) {
    const std::int64_t last = std::min(first + most, count);
    internal::check_interrupt();  // computing the rows of all heads may take seconds
    rows.load(MapWalk::part(queries, first, last));
    rows.add(last - first, sums);
  }
}

}  // namespace

void attention_statistics(const MapsInput& input, const HeadStatistics& statistics, const SdpaOptions& options) {
  const MapWalk walk("attention_statistics", input, options);
  const std::pair<const char*, TensorView> table[kStatistics] = {
      {"entropy", statistics.entropy},       {"largest", statistics.largest},   {"distance", statistics.distance}, {"first_key", statistics.first_key},
      {"previous_key", statistics.previous_key}, {"same_key", statistics.same_key}, {"next_key", statistics.next_key}};
  std::vector<Operand> outputs;
  for (const auto& [name, out] : table) {
    if (!out) continue;
    walk.check_shape(out, {}, name, "[*,N]", DTypeKind::floating);
    outputs.push_back({name, out});
  }
  walk.check_memory(outputs);
  if (outputs.empty()) return;
  walk.sum_rows([&] { return StatisticSums{walk.problem}; },
                [&](std::int64_t b, std::int64_t n, const StatisticSums& sums) {
                  for (std::size_t i = 0; i < kStatistics; ++i) {
                    if (!table[i].second) continue;
                    const double mean = sums.rows > 0 ? sums.sums[i] / static_cast<double>(sums.rows) : 0;
                    store_head(table[i].second, b, n, &mean, false);
                  }
                });
}

void attention_key_sums(const MapsInput& input, TensorView out, const SdpaOptions& options) {
  const MapWalk walk("attention_key_sums", input, options);
  walk.check_output(out, {walk.problem.keys}, "[*,N,S]");
  walk.sum_rows([&] { return KeySums{std::vector<double>(static_cast<std::size_t>(walk.problem.keys))}; },
                [&](std::int64_t b, std::int64_t n, const KeySums& sums) { store_head(out, b, n, sums.sums.data(), true); });
}

void attention_pooled_map(const MapsInput& input, TensorView out, const SdpaOptions& options, Pooling pooling) {
  const MapWalk walk("attention_pooled_map", input, options);
  const std::int64_t queries = walk.problem.queries, keys = walk.problem.keys;
  const std::int64_t width = walk.last_extent(out, "out", "[*,N,h,w]"), height = out.extent(-2);
  walk.check_output(out, {height, width}, "[*,N,h,w]");
  require(height <= queries && width <= keys, "attention_pooled_map: a pooled map of [", height, ",", width, "] is larger than the attention map [", queries, ",", keys, "]");
  if (height == 0 || width == 0) return;
  walk.sum_rows([&] { return PooledLines{queries, keys, height, width, pooling}; },
                [&](std::int64_t b, std::int64_t n, const PooledLines& sums) {
                  std::vector<double> line(static_cast<std::size_t>(width));
                  for (std::int64_t i = 0; i < height; ++i) {
                    const std::int64_t rows = (i + 1) * queries / height - i * queries / height;
                    for (std::int64_t j = 0; j < width; ++j) {
                      const std::int64_t columns = (j + 1) * keys / width - j * keys / width;
                      line[static_cast<std::size_t>(j)] = sums.lines[static_cast<std::size_t>(i * width + j)] / (pooling == Pooling::mean ? static_cast<double>(rows * columns) : 1);
                    }
                    store_row(out, b, n, i, line.data());
                  }
                });
}

void attention_divergence(const MapsInput& input, TensorView out, const SdpaOptions& options) {
  const MapWalk walk("attention_divergence", input, options);
  const std::int64_t heads = walk.problem.heads;
  walk.check_output(out, {heads}, "[*,N,N]");
  const std::vector<std::int64_t> queries = walk.all_queries();
  walk.sum_chunks(
      walk.problem.batch, [&] { return PairSums(heads); },
      [&](PairSums& sums, std::int64_t b, std::int64_t first, std::int64_t last) {
        const auto part = MapWalk::part(queries, first, last);
        walk.problem.dtype == DType::f64 ? add_pairs<double>(walk, part, b, sums) : add_pairs<float>(walk, part, b, sums);
      },
      [&](std::int64_t b, const PairSums& sums) {
        std::vector<double> matrix(static_cast<std::size_t>(heads * heads));
        std::size_t pair = 0;
        for (std::int64_t n = 0; n < heads; ++n) {
          for (std::int64_t m = n + 1; m < heads; ++m, ++pair) {
            const double mean = sums.rows[pair] > 0 ? sums.divergence[pair] / sums.rows[pair] : 0;
            matrix[static_cast<std::size_t>(n * heads + m)] = matrix[static_cast<std::size_t>(m * heads + n)] = mean;
          }
        }
        for (std::int64_t n = 0; n < heads; ++n) store_head(out, b, n, matrix.data() + n * heads, true);
      });
}

}  // namespace polyhead
