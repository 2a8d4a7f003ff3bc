#include "sdpa/rule_blocks.h"

#include <atomic>
#include <bit>
#include <cstdint>

#include "core/dispatch.h"
#include "core/index.h"
#include "core/parallel.h"

namespace polyhead {
namespace {

constexpr BlockSize kBlock{.queries = kMaskBlockKeys, .keys = kMaskBlockKeys};

template <std::size_t Bytes>
using Bits = std::conditional_t<Bytes == 2, std::uint16_t, std::conditional_t<Bytes == 4, std::uint32_t, std::uint64_t>>;

// The bits of the exponent, which are all 1 for infinities and NaN. Integers raise no floating-point exception.
template <class T>
constexpr Bits<sizeof(T)> kExponent = std::is_same_v<T, double> ? Bits<sizeof(T)>(0x7ff0000000000000)
                                      : std::is_same_v<T, float> ? Bits<sizeof(T)>(0x7f800000)
                                                                 : Bits<sizeof(T)>(std::is_same_v<T, bf16> ? 0x7f80 : 0x7c00);

template <class T>
bool row_is_finite(const T* row, std::int64_t count, std::int64_t stride) {
  using B = Bits<sizeof(T)>;
  B found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const B bits = std::bit_cast<B>(row[i * stride]) & kExponent<T>;
    found = static_cast<B>(found | static_cast<B>(bits == kExponent<T>));
  }
  return found == 0;
}

bool is_finite(const ConstTensorView& x, Executor* executor) {
  const Shape rows = x.shape().first(x.rank() - 1);
  const std::int64_t count = x.extent(-1), stride = x.stride(-1);
  std::atomic<bool> finite = true;
  const std::int64_t grain = 1 + static_cast<std::int64_t>(4 * kLeastPieceNanoseconds) / (1 + count);  // a thread reads about 4 elements in a nanosecond
  parallel_for(numel(rows), grain, executor, [&](std::int64_t first, std::int64_t last) {
    dispatch_floating(x.dtype(), [&](auto type) {
      using T = typename decltype(type)::type;
      for (std::int64_t i = first; i < last && finite.load(std::memory_order_relaxed); ++i) {
        const T* const row = static_cast<const T*>(x.data()) + offset_at(rows, x.strides().first(rows.size()), i);
        if (!(stride == 1 ? row_is_finite(row, count, 1) : row_is_finite(row, count, stride))) finite.store(false, std::memory_order_relaxed);
      }
    });
  });
  return finite;
}

}  // namespace

void skip_blocks_of_rule(const Problem& problem, std::initializer_list<ConstTensorView> tensors, ProblemMemory& memory) {
  const ScoreRule& rule = problem.score_rule;
  const bool changes_scores = problem.softcap > 0 || problem.bias || problem.relative_bias;  // a softcap of -infinity is finite, and a bias may be NaN
  if (rule.masks == nullptr || changes_scores || problem.empty_rows != EmptyRows::zero || problem.key_dtype == DType::i8) return;
  if (problem.rules->mask_count == KeySet::kMostMasks || problem.batch * problem.heads * problem.queries == 0 || problem.keys <= kMaskBlockKeys) return;
  const std::int64_t batch = rule.masks_by_batch ? problem.batch : 1, heads = rule.masks_by_head ? problem.heads : 1;
  const std::int64_t rows = (problem.queries + kBlock.queries - 1) / kBlock.queries, columns = (problem.keys + kBlock.keys - 1) / kBlock.keys;
  Shape lead = problem.lead;
  for (std::int64_t& extent : lead) extent = rule.masks_by_batch ? extent : 1;
  Tensor attend(DType::boolean, appended(lead, {heads, rows, columns}));
  std::atomic<bool> any_masked = false;
  const std::int64_t grain = 1 + static_cast<std::int64_t>(kLeastPieceNanoseconds / 100) / columns;  // a block takes about 100 ns
  parallel_for(batch * heads * rows, grain, problem.executor, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      bool* const kept = attend.data<bool>() + row * columns;
      ScoreTile tile{.first_query = row % rows * kBlock.queries, .batch = row / rows / heads, .head = row / rows % heads};
      tile.rows = std::min(kBlock.queries, problem.queries - tile.first_query);
      for (std::int64_t column = 0; column < columns; ++column) {
        tile.first_key = column * kBlock.keys, tile.keys = std::min(kBlock.keys, problem.keys - tile.first_key);
        // The backend `reference` calls the rule in float64, the kernels in the type of the scores.
        tile.float64 = true;
        bool masked = rule.masks(tile, rule.data);
        tile.float64 = false;
        if (problem.dtype != DType::f64) masked = masked && rule.masks(tile, rule.data);
        kept[column] = !masked;
        if (masked) any_masked.store(true, std::memory_order_relaxed);
      }
    }
  });
  if (!any_masked) return;
  for (const ConstTensorView& tensor : tensors) {
    if (!is_finite(tensor, problem.executor)) return;
  }
  memory.rule_blocks = std::move(attend);
  memory.rules.add({ConstTensorView(memory.rule_blocks).expand(appended(problem.lead, {problem.heads, rows, columns})), true, kBlock});
}

}  // namespace polyhead
