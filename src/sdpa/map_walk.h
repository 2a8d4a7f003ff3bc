// MapWalk computes the rows of all heads' attention maps and passes each row to a function. Every operation of maps.h except
// attention_rollout() uses it. Only a few rows are in memory at a time, never a [T,S] map; whole maps are written to the output directly.
#pragma once

#include <atomic>
#include <map>
#include <numeric>
#include <vector>

#include "core/index.h"
#include "core/interrupt.h"
#include "core/parallel.h"
#include "core/threads.h"
#include "polyhead/maps.h"
#include "sdpa/backend.h"
#include "sdpa/normal_form.h"

namespace polyhead {

class MapWalk {
 public:
  MapWalk(const char* operation, const MapsInput& input, const SdpaOptions& options, MapValue value = MapValue::probability)
      : problem(normal_form(input, options, value, operation, memory)),
        backend(select_backend(problem, Operation::maps, options.backend)),
        op_(operation),
        progress_(input.progress),
        inputs_{{"q", input.q}, {"k", input.k}, {"k_scale", input.k_scale}} {
    add_option_tensors(options, inputs_);
  }
  MapWalk(const MapWalk&) = delete;
  MapWalk& operator=(const MapWalk&) = delete;
  ~MapWalk() = default;

  std::vector<std::int64_t> all_queries() const {
    std::vector<std::int64_t> queries(static_cast<std::size_t>(problem.queries));
    std::iota(queries.begin(), queries.end(), std::int64_t{0});
    return queries;
  }
  void check_queries(std::span<const std::int64_t> queries) const {
    for (const std::int64_t t : queries) require(0 <= t && t < problem.queries, op_, ": there is no query ", t, "; queries lie in [0,", problem.queries, ")");
  }

  // Divides the list of `rows` chosen queries into chunks, for each head, and calls f(b, n, first, last) for each chunk. [first, last) are indices in the list.
  // Threads take the chunks in order.
  template <class F>
  void for_each_chunk(std::int64_t rows, const F& f) const {
    if (rows == 0) return;  // an empty q may have 2^62 heads, and a loop over these heads would not end
    const std::int64_t chunks = chunks_of(rows);
    run(problem.batch * problem.heads, rows, [&](std::int64_t item, std::int64_t first, std::int64_t last) {
      const std::int64_t head = item / chunks;
      f(head / problem.heads, head % problem.heads, first, last);
    });
  }

  // Calls of_row(b, n, row) for the row of queries[row.index] of every head, from several threads.
  template <class F>
  void for_each_row(std::span<const std::int64_t> queries, const F& of_row) const {
    for_each_chunk(static_cast<std::int64_t>(queries.size()), [&](std::int64_t b, std::int64_t n, std::int64_t first, std::int64_t last) {
      backend.map_rows(problem, b, n, part(queries, first, last), [&](MapRow row) {
        row.index += first;
        of_row(b, n, row);
      });
    });
  }

  // Sums over the rows of each head. fresh() returns an object whose sums are 0. The object has the members add(t, row) and merge(sums of later rows). done(b,
  // n, sums) is called once for each head. Chunks of rows are merged in their order, so the bits do not depend on the number of threads.
  template <class New, class Done>
  void sum_rows(const New& fresh, const Done& done) const {
    const std::vector<std::int64_t> queries = all_queries();
    sum_chunks(problem.batch * problem.heads, fresh,
               [&](auto& sums, std::int64_t head, std::int64_t first, std::int64_t last) {
                 backend.map_rows(problem, head / problem.heads, head % problem.heads, part(queries, first, last),
                                  [&](const MapRow& row) { sums.add(first + row.index, row); });
               },
               [&](std::int64_t head, const auto& sums) { done(head / problem.heads, head % problem.heads, sums); });
  }

  // Sums over the queries for each of `count` items, such as heads or sequences. add(sums, i, first, last) adds the queries [first, last) of item i. done(i,
  // sums) is called once for each item. Chunks of queries are merged in their order.
  template <class New, class Add, class Done>
  void sum_chunks(std::int64_t count, const New& fresh, const Add& add, const Done& done) const {
    using Sums = decltype(fresh());
    if (problem.queries == 0) {
      for (std::int64_t i = 0; i < count; ++i) done(i, fresh());
      return;
    }
    const std::int64_t chunks = chunks_of(problem.queries);
    Mutex mutex;
    std::map<std::int64_t, Sums> waiting;  // sums of chunks that wait for an earlier chunk; rarely more of them than threads
    std::int64_t next = 0;
    std::vector<Sums> total;  // sums of the item that chunk number `next` belongs to
    run(count, problem.queries, [&](std::int64_t item, std::int64_t first, std::int64_t last) {
      Sums sums = fresh();
      add(sums, item / chunks, first, last);
      const Lock lock(mutex);
      waiting.emplace(item, std::move(sums));
      for (auto it = waiting.begin(); it != waiting.end() && it->first == next; it = waiting.erase(it), ++next) {
        if (total.empty()) {
          total.push_back(std::move(it->second));
        } else {
          total.front().merge(it->second);
        }
        if ((next + 1) % chunks != 0) continue;
        done(next / chunks, total.front());
        total.clear();
      }
    });
  }

  // Error unless `out` has the shape [*,N,rest...] (* and N as in the problem) and a dtype of the given kind.
  void check_shape(TensorView out, std::initializer_list<std::int64_t> rest, const char* name, const char* letters, DTypeKind kind) const {
    const Shape wanted = appended(appended(problem.lead, {problem.heads}), rest);
    require(static_cast<bool>(out), op_, ": ", name, " is missing");
    require(out.shape() == wanted, op_, ": ", name, " is ", out.shape(), "; it must be ", letters, " = ", wanted);
    require(info(out.dtype()).kind == kind, op_, ": ", name, " is ", out.dtype(), "; it must be ",
            kind == DTypeKind::floating ? "floating" : "an integer");
  }
  // Returns the last extent of an output [*,N,..,last], which the caller of the operation chooses.
  std::int64_t last_extent(TensorView out, const char* name, const char* letters) const {
    require(static_cast<bool>(out), op_, ": ", name, " is missing");
    require(out.rank() >= 2, op_, ": ", name, " is ", out.shape(), "; it must be ", letters);
    return out.extent(-1);
  }

  void add_input(const Operand& operand) { inputs_.push_back(operand); }
  // Error if an output of the operation overlaps an input or another output.
  void check_memory(std::span<const Operand> outputs) const { require_no_overlap(op_, outputs, inputs_); }

  void check_output(TensorView out, std::initializer_list<std::int64_t> rest, const char* letters) const {
    check_shape(out, rest, "out", letters, DTypeKind::floating);
    const Operand output{"out", out};
    check_memory({&output, 1});
  }

  static std::span<const std::int64_t> part(std::span<const std::int64_t> queries, std::int64_t first, std::int64_t last) {
    return queries.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
  }

  ProblemMemory memory;  // memory that `problem` points into
  const MapsProblem problem;
  const Backend& backend;

 private:
  // Number of rows in a chunk. The kernel packs all keys once for each chunk, which takes only as long as computing about 10 rows.
  static constexpr std::int64_t kChunkRows = 512;
  static std::int64_t chunks_of(std::int64_t rows) { return (rows + kChunkRows - 1) / kChunkRows; }

  // Divides the `rows` rows of each of `count` items into chunks and numbers the chunks of all items. Calls f(number, first, last) for each chunk, and reports
  // the progress.
  template <class F>
  void run(std::int64_t count, std::int64_t rows, const F& f) const {
    const std::int64_t chunks = chunks_of(rows);
    std::vector<std::int64_t> bounds(static_cast<std::size_t>(count * chunks + 1));
    std::iota(bounds.begin(), bounds.end(), std::int64_t{0});
    const ThreadId caller = this_thread();
    std::atomic<std::int64_t> finished{0};
    parallel_pieces(bounds, problem.executor, [&](std::int64_t piece, std::int64_t end) {
      for (; piece < end; ++piece) {
        check_interrupt();
        const std::int64_t first = piece % chunks * kChunkRows, last = std::min(first + kChunkRows, rows);
        f(piece, first, last);
        const std::int64_t done = finished.fetch_add(last - first) + last - first;
        if (progress_ && this_thread() == caller && done < count * rows) progress_(done, count * rows);
      }
    });
    if (progress_) progress_(count * rows, count * rows);
  }

  const char* op_;
  std::function<void(std::int64_t done, std::int64_t total)> progress_;
  std::vector<Operand> inputs_;
};

}  // namespace polyhead
