#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <vector>

#include "core/parallel.h"
#include "core/text.h"
#include "cpu/scratch_memory.h"
#include "cpu/sdpa/group.h"
#include "cpu/sdpa/sdpa.h"
#include "cpu/select.h"

namespace polyhead::cpu {
namespace {

constexpr std::int64_t kWantedTasks = 8;

// Rows that one task computes. Each task packs the keys and values that it meets: a few cycles per element, shared by its rows, are 3 % of
// the time. A row's bits do not depend on the block that it is in.
struct Blocks {
  std::int64_t rows;       // of a head, or of whole heads
  std::int64_t per_group;  // tasks of a key/value head

  // Of all sequences together at least `tasks`, where there are rows enough.
  Blocks(const Problem& p, std::int64_t batch, std::int64_t tasks) {
    constexpr std::int64_t kStrip = 12;
    const std::int64_t widest = std::max(p.qk_width, p.v_width) * (p.dtype == DType::f64 ? 2 : 1);
    const std::int64_t group = p.heads / p.kv_heads;
    std::int64_t most = widest <= 64 ? 768 : widest <= 128 ? 384 : 192;
    while (most > 96 && batch * p.heads * p.queries < tasks * most) most /= 2;
    if (p.queries * 2 <= most) {  // whole heads, so that the queries of a group share what is packed
      const std::int64_t heads = std::min(group, most / p.queries);
      rows = heads * p.queries;
      per_group = (group + heads - 1) / heads;
      whole_heads_ = true;
    } else {
      const std::int64_t blocks = (p.queries + most - 1) / most, share = (p.queries + blocks - 1) / blocks;
      rows = std::min(p.queries, (share + kStrip - 1) / kStrip * kStrip);
      per_head_ = (p.queries + rows - 1) / rows;
      per_group = group * per_head_;
    }
  }

  // First row and number of rows of task i of a group.
  void place(std::int64_t i, const HeadGroup& group, ForwardTask& task) const {
    if (whole_heads_) {
      task.first_row = i * rows;
      task.rows = std::min(rows, group.heads * group.queries - task.first_row);
    } else {
      const std::int64_t t = i % per_head_ * rows;
      task.first_row = i / per_head_ * group.queries + t;
      task.rows = std::min(rows, group.queries - t);
    }
  }

 private:
  std::int64_t per_head_ = 1;
  bool whole_heads_ = false;
};

// Parts of the keys, where a sequence has few blocks of rows: then one head has something for every thread. They follow from the sizes of one
// sequence only, so that results depend neither on the threads nor on the other sequences.
struct KeyParts {
  std::int64_t count = 1;

  explicit KeyParts(const Problem& p) : size_(p.keys) {
    const Blocks blocks(p, 1, kWantedTasks);
    KeyRange seen{0, p.keys};
    if (p.ranges.banded && p.empty_rows == EmptyRows::zero)  // else a row that the mask empties may have them all
      seen = {std::max<std::int64_t>(0, p.ranges.lower), std::min(p.keys, p.queries - 1 + p.ranges.upper)};
    // A number of a key or value is read and transposed in the time of 22 multiplications; 5 10^6 are 100 us, twice a thread's wake-up.
    const double work = static_cast<double>(seen.last - seen.first) * static_cast<double>((p.qk_width + p.v_width) * (blocks.rows + 22));
    const std::int64_t most = std::max<std::int64_t>(1, kWantedTasks / std::max<std::int64_t>(1, p.kv_heads * blocks.per_group));
    count = static_cast<std::int64_t>(std::clamp(work / 5e6, 1.0, static_cast<double>(most)));
    if (count == 1) return;
    constexpr std::int64_t kBlock = 512;  // whole blocks of the kernels
    first_ = seen.first / kBlock * kBlock;
    size_ = ((seen.last - first_ + count - 1) / count + kBlock - 1) / kBlock * kBlock;
    count = (seen.last - first_ + size_ - 1) / size_;
  }

  void place(std::int64_t part, ForwardTask& task) const {
    task.first_key = first_ + part * size_;
    task.last_key = task.first_key + size_;
  }

 private:
  std::int64_t first_ = 0, size_;
};

// How the work is cut. A unit is a block of rows with all parts of its keys, or with one of them where there are few blocks.
struct Cut {
  Blocks blocks;
  KeyParts parts;
  std::int64_t count;           // of blocks
  std::int64_t units_of_block;  // 1, or one per part
  std::int64_t row_bytes;       // of a partial result

  explicit Cut(const Problem& p)
      : blocks(p, p.batch, threads_of(p.executor) == 1 ? 1 : kWantedTasks),
        parts(p),
        count(p.batch * p.kv_heads * blocks.per_group),
        units_of_block(count < kWantedTasks ? parts.count : 1),
        row_bytes(partial_stride(p.v_width) * (p.dtype == DType::f64 ? 8 : 4)) {}
  bool apart() const { return units_of_block > 1; }
  std::int64_t block_bytes() const { return parts.count > 1 ? parts.count * blocks.rows * row_bytes : 0; }
};

ForwardTask sizes_of(const ForwardProblem& p, std::int64_t rows) {
  ForwardTask task;
  task.dtype = p.dtype;
  task.queries = p.queries, task.keys = p.keys, task.qk_width = p.qk_width, task.v_width = p.v_width;
  task.rows = rows;
  task.attention_weights = plane_of(p.attention_weights, 0, 0);
  return task;
}

// A part of the keys does not know what the whole row sums to: where a sequence has parts, weights take the products once more.
bool takes_weights_afterwards(const ForwardProblem& p, const Cut& cut) { return p.attention_weights && cut.parts.count > 1; }

ForwardProblem without_weights(ForwardProblem p) {
  p.attention_weights = {};
  return p;
}

void forward_and_maps(const ForwardProblem& p) {
  sdpa_forward(without_weights(p));
  MapsProblem maps{p, p.q, p.k, {}, MapValue::probability};
  std::vector<std::int64_t> queries(static_cast<std::size_t>(p.queries));
  std::iota(queries.begin(), queries.end(), std::int64_t{0});
  parallel_for(p.batch * p.heads, 1, p.executor, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t head = first; head < last; ++head) write_maps(maps, head / p.heads, head % p.heads, queries, p.attention_weights);
  });
}

}  // namespace

void sdpa_forward(const ForwardProblem& p) {
  if (p.batch * p.heads * p.queries == 0) return;
  const SdpaKernels& kernels = current_kernels().sdpa;
  const Cut cut(p);
  if (takes_weights_afterwards(p, cut)) return forward_and_maps(p);
  const Blocks& blocks = cut.blocks;
  const std::int64_t parts = cut.parts.count, bytes = kernels.forward_scratch(sizes_of(p, blocks.rows));
  // Of parts that run on different threads; else a thread has its own.
  std::optional<ScratchMemory> shared;
  if (cut.apart()) shared.emplace(cut.count * cut.block_bytes());
  std::vector<std::atomic<std::int64_t>> done(static_cast<std::size_t>(cut.apart() ? cut.count : 0));
  // A thread's wake-up is worth 50 us: 10^6 multiplications.
  const double work = static_cast<double>(blocks.rows * p.keys) * static_cast<double>(p.qk_width + p.v_width);
  const auto grain = cut.apart() ? 1 : static_cast<std::int64_t>(std::clamp(1e6 / std::max(work, 1.0), 1.0, 1e6));
  parallel_for(cut.count * cut.units_of_block, grain, p.executor, [&](std::int64_t first, std::int64_t last) {
    const ScratchMemory scratch(bytes + (cut.apart() ? 0 : cut.block_bytes()));
    std::vector<RowKind> kinds;
    ForwardTask task;
    // Counted on from the first: five divisions a unit take as long as a few rows.
    std::int64_t i = first / cut.units_of_block, begin = first % cut.units_of_block, block = i % blocks.per_group;
    std::int64_t kv = i / blocks.per_group % p.kv_heads, b = i / blocks.per_group / p.kv_heads;
    const auto next = [&] {
      if (++begin < cut.units_of_block) return;
      begin = 0, ++i;
      if (++block < blocks.per_group) return;
      block = 0;
      if (++kv < p.kv_heads) return;
      kv = 0, ++b;
    };
    for (std::int64_t unit = first; unit < last; ++unit, next()) {
      const std::int64_t end = cut.apart() ? begin + 1 : parts;
      if (unit == first || (block == 0 && begin == 0)) {
        static_cast<HeadGroup&>(task) = head_group(p, p.q, p.k, p.v, b, kv, kinds);
        task.out = plane_of(p.out, b, kv * task.heads);
        task.lse = plane_of(p.lse, b, kv * task.heads);
        task.attention_weights = plane_of(p.attention_weights, b, kv * task.heads);
      }
      blocks.place(block, task, task);
      char* partials = nullptr;
      if (parts > 1) partials = cut.apart() ? static_cast<char*>(shared->get()) + i * cut.block_bytes() : static_cast<char*>(scratch.get()) + bytes;
      for (std::int64_t part = begin; part < end; ++part) {
        cut.parts.place(part, task);
        task.partial = parts > 1 ? partials + part * task.rows * cut.row_bytes : nullptr;
        kernels.forward(task, scratch.get());
      }
      // Whoever brings the last part adds them all, in their order.
      if (parts == 1 || (cut.apart() && ++done[static_cast<std::size_t>(i)] < parts)) continue;
      task.partial = partials;
      kernels.merge(task, parts);
    }
  });
}

std::string facts_of_forward(const ForwardProblem& p) {
  if (p.batch * p.heads * p.queries == 0) return {};
  const KernelSet& set = current_kernels();
  const Cut cut(p);
  if (takes_weights_afterwards(p, cut)) {
    return facts_of_forward(without_weights(p)) + "weights: by a second pass over q and k, as the keys are in parts\n";
  }
  const std::int64_t bytes = set.sdpa.forward_scratch(sizes_of(p, cut.blocks.rows)), partials = cut.block_bytes();
  return cat("kernel: ", set.name, ", blocks of ", cut.blocks.rows, " queries, ", cut.count, " of them",
             cut.parts.count > 1 ? cat(", each in ", cut.parts.count, " parts of its keys") : std::string(), "\n",
             "scratch: ", bytes + (cut.apart() ? 0 : partials), " bytes per thread",
             cut.apart() ? cat(" and ", cut.count * partials, " for all parts") : std::string(), "\n",
             p.attention_weights ? "weights: from the same pass\n" : "");
}

}  // namespace polyhead::cpu
