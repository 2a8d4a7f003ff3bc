#include "polyhead/maps.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "core/parallel.h"
#include "reference/row.h"
#include "sdpa/backend.h"
#include "sdpa/normal_form.h"

namespace polyhead {
namespace {

using reference::store_row;

// Computes the rows of all maps. Only a few rows are in memory at a time, never a [T,S] map.
class RowStream {
 public:
  RowStream(const char* operation, const MapsInput& input, const SdpaOptions& options, MapValue value = MapValue::probability)
      : problem(normal_form(input, options, value, operation, memory)),
        backend_(select_backend(problem, Operation::maps, options.backend)),
        op_(operation),
        inputs_{{"q", input.q}, {"k", input.k}, {"k_scale", input.k_scale}} {
    add_option_tensors(options, inputs_);
  }
  RowStream(const RowStream&) = delete;
  RowStream& operator=(const RowStream&) = delete;
  ~RowStream() = default;

  // Calls row(b, n, i, values [S]) for queries[i] of every head. Rows of one head come in order and on one thread.
  template <class F>
  void for_each_row(std::span<const std::int64_t> queries, const F& row) const {
    for_each_head(queries, [&](std::int64_t b, std::int64_t n) {
      backend_.map_rows(problem, b, n, queries, [&](std::int64_t i, std::span<const double> values) { row(b, n, i, values); });
    });
  }
  template <class F>
  void for_each_row(const F& row) const {
    for_each_row(all_queries(), row);
  }

  std::vector<std::int64_t> all_queries() const {
    std::vector<std::int64_t> queries(static_cast<std::size_t>(problem.queries));
    std::iota(queries.begin(), queries.end(), std::int64_t{0});
    return queries;
  }

  // out (b, n, i, :) = the map of queries[i] of every head.
  void write_rows(std::span<const std::int64_t> queries, TensorView out) const {
    const bool direct = backend_.write_maps != nullptr && (out.dtype() == DType::f64) == (problem.dtype == DType::f64);
    for_each_head(queries, [&](std::int64_t b, std::int64_t n) {
      if (direct) return backend_.write_maps(problem, b, n, queries, out);
      backend_.map_rows(problem, b, n, queries,
                        [&](std::int64_t i, std::span<const double> values) { store_row(out, b, n, i, values.data()); });
    });
  }

  // Error unless `out` has the shape [*,N,rest...] of the problem and a dtype of this kind.
  void check_shape(TensorView out, std::initializer_list<std::int64_t> rest, const char* name, const char* letters, DTypeKind kind) const {
    Shape wanted = problem.lead;
    wanted.push_back(problem.heads);
    for (const std::int64_t extent : rest) wanted.push_back(extent);
    require(static_cast<bool>(out), op_, ": ", name, " is missing");
    require(out.shape() == wanted, op_, ": ", name, " is ", out.shape(), "; it must be ", letters, " = ", wanted);
    require(info(out.dtype()).kind == kind, op_, ": ", name, " is ", out.dtype(), "; it must be ",
            kind == DTypeKind::floating ? "floating" : "an integer");
  }

  // No output of the operation may overlap an input or another output.
  void check_memory(std::span<const Operand> outputs) const { require_separate(op_, outputs, inputs_); }

  void check_output(TensorView out, std::initializer_list<std::int64_t> rest, const char* letters) const {
    check_shape(out, rest, "out", letters, DTypeKind::floating);
    const Operand output{"out", out};
    check_memory({&output, 1});
  }

  ProblemMemory memory;  // `problem` points to it
  const MapsProblem problem;

 private:
  template <class F>
  void for_each_head(std::span<const std::int64_t> queries, const F& of_head) const {
    if (queries.empty()) return;  // q may then have 2^62 heads, and a loop over them would not end
    parallel_for(problem.batch * problem.heads, 1, problem.executor, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t head = first; head < last; ++head) of_head(head / problem.heads, head % problem.heads);
    });
  }

  const Backend& backend_;
  const char* op_;
  std::vector<Operand> inputs_;
};

}  // namespace

void attention_map(const MapsInput& input, TensorView out, const SdpaOptions& options, MapValue value) {
  const RowStream stream("attention_map", input, options, value);
  stream.check_output(out, {stream.problem.queries, stream.problem.keys}, "[*,N,T,S]");
  stream.write_rows(stream.all_queries(), out);
}

void attention_map_rows(const MapsInput& input, std::span<const std::int64_t> queries, TensorView out, const SdpaOptions& options, MapValue value) {
  const RowStream stream("attention_map_rows", input, options, value);
  for (const std::int64_t t : queries) {
    require(0 <= t && t < stream.problem.queries, "attention_map_rows: query ", t, "; queries lie in [0,", stream.problem.queries, ")");
  }
  stream.check_output(out, {static_cast<std::int64_t>(queries.size()), stream.problem.keys}, "[*,N,R,S]");
  stream.write_rows(queries, out);
}

void attention_top_keys(const MapsInput& input, TensorView probability, TensorView key, const SdpaOptions& options) {
  const RowStream stream("attention_top_keys", input, options);
  const std::int64_t count = probability ? probability.shape().empty() ? 0 : probability.extent(-1) : 0;
  stream.check_shape(probability, {stream.problem.queries, count}, "probability", "[*,N,T,k]", DTypeKind::floating);
  stream.check_shape(key, {stream.problem.queries, count}, "key", "[*,N,T,k]", DTypeKind::integer);
  require(key.dtype() == DType::i64, "attention_top_keys: key is ", key.dtype(), "; it must be int64");
  stream.check_memory(std::array{Operand{"probability", probability}, Operand{"key", key}});
  require(count <= stream.problem.keys, "attention_top_keys: ", count, " keys per row were asked for; there are S = ", stream.problem.keys);
  stream.for_each_row([&](std::int64_t b, std::int64_t n, std::int64_t t, std::span<const double> row) {
    std::vector<std::int64_t> order(row.size());
    std::iota(order.begin(), order.end(), std::int64_t{0});
    const auto p = [&](std::int64_t s) { return row[static_cast<std::size_t>(s)]; };
    // NaN counts as larger than any number, so that the order is well defined and a NaN appears in the result.
    const auto before = [&](std::int64_t x, std::int64_t y) {
      if (std::isnan(p(x)) != std::isnan(p(y))) return std::isnan(p(x));
      return p(x) != p(y) && !std::isnan(p(x)) ? p(x) > p(y) : x < y;
    };
    std::partial_sort(order.begin(), order.begin() + count, order.end(), before);
    std::vector<double> values;
    const auto keys = head_slice<std::int64_t>(key, b, n);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t s = order[static_cast<std::size_t>(i)];
      keys(t, i) = s;
      values.push_back(p(s));
    }
    store_row(probability, b, n, t, values.data());
  });
}

void attention_statistics(const MapsInput& input, const HeadStatistics& statistics, const SdpaOptions& options) {
  const RowStream stream("attention_statistics", input, options);
  struct Statistic {
    TensorView out;
    const char* name;
    double (*of_row)(std::span<const double> p, std::int64_t t);
  };
  static constexpr auto at = [](std::span<const double> p, std::int64_t s) {
    return s >= 0 && s < static_cast<std::int64_t>(p.size()) ? p[static_cast<std::size_t>(s)] : 0.0;
  };
  const Statistic table[] = {
      {statistics.entropy, "entropy",
       [](std::span<const double> p, std::int64_t) {
         double sum = 0;
         for (const double x : p) sum -= x > 0 || std::isnan(x) ? x * std::log(x) : 0;
         return sum;
       }},
      {statistics.largest, "largest",
       [](std::span<const double> p, std::int64_t) {
         double largest = 0;
         for (const double x : p) largest = x > largest || std::isnan(x) ? x : largest;  // a NaN replaces every number
         return largest;
       }},
      {statistics.distance, "distance",
       [](std::span<const double> p, std::int64_t t) {
         double sum = 0;
         for (std::size_t s = 0; s < p.size(); ++s) sum += p[s] * std::abs(static_cast<double>(static_cast<std::int64_t>(s) - t));
         return sum;
       }},
      {statistics.first_key, "first_key", [](std::span<const double> p, std::int64_t) { return at(p, 0); }},
      {statistics.previous_key, "previous_key", [](std::span<const double> p, std::int64_t t) { return at(p, t - 1); }},
      {statistics.same_key, "same_key", [](std::span<const double> p, std::int64_t t) { return at(p, t); }},
      {statistics.next_key, "next_key", [](std::span<const double> p, std::int64_t t) { return at(p, t + 1); }},
  };
  std::vector<Operand> outputs;
  for (const Statistic& statistic : table) {
    if (!statistic.out) continue;
    stream.check_shape(statistic.out, {}, statistic.name, "[*,N]", DTypeKind::floating);
    outputs.push_back({statistic.name, statistic.out});
  }
  stream.check_memory(outputs);
  if (outputs.empty()) return;
  const auto heads = static_cast<std::size_t>(stream.problem.batch * stream.problem.heads);
  std::vector<std::int64_t> rows(heads);
  std::vector<std::array<double, std::size(table)>> sums(heads);
  stream.for_each_row([&](std::int64_t b, std::int64_t n, std::int64_t t, std::span<const double> row) {
    if (std::all_of(row.begin(), row.end(), [](double p) { return p == 0; })) return;  // an empty row
    const auto head = static_cast<std::size_t>(b * stream.problem.heads + n);
    ++rows[head];
    // Positions count in the document: a packed query t and key t are no neighbours.
    const Document& document = document_of(stream.problem, t);
    const auto own = row.subspan(static_cast<std::size_t>(document.keys.first), static_cast<std::size_t>(document.keys.last - document.keys.first));
    for (std::size_t i = 0; i < std::size(table); ++i) {
      if (table[i].out) sums[head][i] += table[i].of_row(own, t - document.queries.first);
    }
  });
  for (std::size_t head = 0; head < heads; ++head) {
    const auto b = static_cast<std::int64_t>(head) / stream.problem.heads, n = static_cast<std::int64_t>(head) % stream.problem.heads;
    for (std::size_t i = 0; i < std::size(table); ++i) {
      if (!table[i].out) continue;
      const double mean = rows[head] > 0 ? sums[head][i] / static_cast<double>(rows[head]) : 0;
      store_row(table[i].out.unsqueeze(-1).unsqueeze(-1), b, n, 0, &mean);
    }
  }
}

void attention_pooled_map(const MapsInput& input, TensorView out, const SdpaOptions& options) {
  const RowStream stream("attention_pooled_map", input, options);
  const std::int64_t queries = stream.problem.queries, keys = stream.problem.keys;
  require(static_cast<bool>(out), "attention_pooled_map: out is missing");
  require(out.rank() >= 2, "attention_pooled_map: out is ", out.shape(), "; it must be [*,N,h,w]");
  const std::int64_t height = out.extent(-2), width = out.extent(-1);
  stream.check_output(out, {height, width}, "[*,N,h,w]");
  require(height <= queries && width <= keys, "attention_pooled_map: a pooled map of [", height, ",", width, "] is larger than the attention map [", queries, ",", keys, "]");
  if (height == 0 || width == 0) return;
  // Rows of one head arrive in order, so one line of block sums per head is enough.
  std::vector<std::vector<double>> lines(static_cast<std::size_t>(stream.problem.batch * stream.problem.heads));
  stream.for_each_row([&](std::int64_t b, std::int64_t n, std::int64_t t, std::span<const double> row) {
    std::vector<double>& line = lines[static_cast<std::size_t>(b * stream.problem.heads + n)];
    const std::int64_t i = ((t + 1) * height - 1) / queries;  // the block with i T/h <= t < (i+1) T/h
    const std::int64_t first = i * queries / height, last = (i + 1) * queries / height;
    if (t == first) line.assign(static_cast<std::size_t>(width), 0.0);
    for (std::int64_t j = 0; j < width; ++j) {
      const std::int64_t begin = j * keys / width, end = (j + 1) * keys / width;
      const double sum = std::accumulate(row.begin() + begin, row.begin() + end, 0.0);
      line[static_cast<std::size_t>(j)] += sum / static_cast<double>((last - first) * (end - begin));
    }
    if (t + 1 == last) store_row(out, b, n, i, line.data());
  });
}

}  // namespace polyhead
