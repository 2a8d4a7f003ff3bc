#include "cpu/sdpa/mask_blocks.h"

#include "core/index.h"
#include "core/parallel.h"

namespace polyhead::cpu {
namespace {

// Whether some bytes of a mask are true, and whether some are false.
struct SeenValues {
  bool some_true = false, some_false = false;
  bool both() const { return some_true && some_false; }
};

void read_row(const std::uint8_t* bytes, std::int64_t stride, std::int64_t count, SeenValues& seen) {
  typedef std::uint8_t Bytes __attribute__((vector_size(16)));
  typedef std::uint64_t Words __attribute__((vector_size(16)));
  std::int64_t i = 0;
  if (stride == 1) {
    Bytes ones{}, zeros{};
    for (; i + 16 <= count; i += 16) {
      Bytes x;
      __builtin_memcpy(&x, bytes + i, sizeof x);
      ones |= x;
      zeros |= (Bytes)(x == 0);
    }
    const auto any = [](Bytes x) { return (((Words)x)[0] | ((Words)x)[1]) != 0; };
    seen.some_true |= any(ones), seen.some_false |= any(zeros);
  }
  for (; i < count; ++i) (bytes[i * stride] != 0 ? seen.some_true : seen.some_false) = true;
}

std::int64_t blocks_of(std::int64_t extent, std::int64_t block) { return (extent + block - 1) / block; }

}  // namespace

RowKind row_kind(const KeySet& set, EmptyRows mode, std::int64_t head, std::int64_t t) {
  KeyRange range = without_skipped_ends(set, head, t, key_range(set, t));
  while (!range.empty() && !masks_attend(set, head, t, range.first)) ++range.first;
  return !range.empty() ? RowKind::masked : mode == EmptyRows::uniform ? RowKind::uniform : RowKind::unmasked;
}

bool find_row_kinds(const KeySet& set, EmptyRows mode, std::int64_t heads, RowKind* kinds) {
  bool any_empty = false;
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t t = 0; t < set.queries; ++t, ++kinds) {
      *kinds = row_kind(set, mode, head, t);
      any_empty |= *kinds != RowKind::masked;
    }
  }
  return any_empty;
}

// Returns the block kinds of a mask with listed blocks (Mask::blocks). The result has a row for each block of queries of the document, and a column for each
// kMaskBlockKeys of its keys. Sequences and heads that share their lists (stride 0) share the kinds.
MaskBlocks::Table MaskBlocks::kinds_of_lists(const Problem& problem, int mask) {
  const Document& document = problem.documents.front();
  const std::int64_t key_blocks = blocks_of(problem.keys, kMaskBlockKeys);
  ConstTensorView of_heads = problem.rules->masks[static_cast<std::size_t>(mask)].tensor;
  const Shape all = of_heads.shape().first(of_heads.rank() - 2);
  for (int axis = 0; axis < all.size(); ++axis) {
    if (of_heads.stride(axis) == 0 && of_heads.extent(axis) > 1) of_heads = of_heads.slice(axis, 0, 1);
  }
  const Shape heads = of_heads.shape().first(all.size());
  const KeySet set = problem.key_set(0, 0, document);
  const BooleanMask& booleans = set.masks[mask];
  const std::int64_t row_blocks = booleans.row_of_query(problem.queries - 1) + 1, count = numel(heads);
  const Shape blocks{row_blocks, key_blocks};
  Table table;
  table.memory = Tensor::uninitialised(DType::u8, appended(heads, blocks));
  auto* const kinds = reinterpret_cast<BlockKind*>(table.memory.data<std::uint8_t>());
  parallel_for(count * row_blocks, 1 + static_cast<std::int64_t>(kLeastPieceNanoseconds) / (1 + key_blocks), problem.executor, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t index = first; index < last; ++index) {
      const std::uint8_t* const row = booleans.data + offset_at(heads, of_heads.strides().first(all.size()), index / row_blocks) + index % row_blocks * booleans.row;
      for (std::int64_t block = 0; block < key_blocks; ++block) {
        const std::int64_t key = block * kMaskBlockKeys, end = std::min(problem.keys, key + kMaskBlockKeys);
        SeenValues seen;
        for (std::int64_t i = booleans.column_of_key(key); i <= booleans.column_of_key(end - 1); ++i) (row[i * booleans.column] != 0 ? seen.some_true : seen.some_false) = true;
        kinds[index * key_blocks + block] = seen.both() ? BlockKind::partial : seen.some_true ? BlockKind::full : BlockKind::skip;
      }
    }
  });
  table.blocks = ConstTensorView(table.memory.view()).expand(appended(all, blocks));
  return table;
}

MaskBlocks::MaskBlocks(const Problem& problem) : group_(problem.heads / problem.kv_heads), kv_heads_(problem.kv_heads) {
  const Document& document = problem.documents.front();
  // If all keys lie in one block, a kernel could skip only empty rows, so the masks are not analysed.
  if (problem.keys > kMaskBlockKeys) tables_.resize(static_cast<std::size_t>(problem.rules->mask_count));
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    Table& table = tables_[i];
    const DenseMask& mask = problem.rules->masks[i];
    if (mask.listed.queries > 0) {
      table = kinds_of_lists(problem, static_cast<int>(i));
      continue;
    }
    const ConstTensorView bytes = mask.tensor.slice(-2, document.queries.first, document.queries.last).slice(-1, document.keys.first, document.keys.last);
    Shape shared = bytes.shape();  // a broadcast axis (stride 0) gets extent 1, so that shared elements are analysed once
    for (int axis = 0; axis < shared.size(); ++axis) {
      if (bytes.stride(axis) == 0 && shared[axis] > 1) shared[axis] = 1;
    }
    const std::int64_t rows = shared[-2], columns = shared[-1], row_stride = bytes.stride(-2), column_stride = bytes.stride(-1);
    const std::int64_t key_blocks = blocks_of(bytes.extent(-1), kMaskBlockKeys);
    Shape shape = shared;
    shape[-2] = blocks_of(rows, kMaskBlockQueries), shape[-1] = key_blocks;
    table.memory = Tensor::uninitialised(DType::u8, shape);
    auto* const blocks = reinterpret_cast<BlockKind*>(table.memory.data<std::uint8_t>());
    const auto* const data = static_cast<const std::uint8_t*>(bytes.data());
    const std::int64_t row_blocks = shape[-2], matrices = numel(shape.first(shape.size() - 2));
    const Shape heads = shared.first(shared.size() - 2);
    const Strides strides = bytes.strides().first(shared.size() - 2);
    // A thread analyses 20 bytes in a nanosecond, so this many bytes take kLeastPieceNanoseconds.
    constexpr auto kLeastBytes = static_cast<std::int64_t>(20 * kLeastPieceNanoseconds);
    const std::int64_t grain = 1 + kLeastBytes / (1 + std::min(rows, kMaskBlockQueries) * columns);
    parallel_for(matrices * row_blocks, grain, problem.executor, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t index = first; index < last; ++index) {
        const std::int64_t begin = index % row_blocks * kMaskBlockQueries, end = std::min(rows, begin + kMaskBlockQueries);
        const std::uint8_t* const booleans = data + offset_at(heads, strides, index / row_blocks);
        for (std::int64_t block = 0; block < key_blocks; ++block) {
          const std::int64_t key = columns == 1 ? 0 : block * kMaskBlockKeys, count = std::min(kMaskBlockKeys, columns - key);
          SeenValues seen;
          for (std::int64_t t = begin; t < end && !seen.both(); ++t)
            read_row(booleans + t * row_stride + key * column_stride, column_stride, count, seen);
          const bool some = mask.attend ? seen.some_true : seen.some_false;
          blocks[index * key_blocks + block] = seen.both() ? BlockKind::partial : some ? BlockKind::full : BlockKind::skip;
        }
      }
    });
    Shape expanded = bytes.shape();
    expanded[-2] = rows == 1 ? blocks_of(expanded[-2], kMaskBlockQueries) : row_blocks, expanded[-1] = key_blocks;
    table.blocks = ConstTensorView(table.memory.view()).expand(expanded);
  }
  if (problem.empty_rows == EmptyRows::zero || !problem.rules->any()) return;
  const std::int64_t groups = problem.batch * kv_heads_, rows = group_ * problem.queries;
  std::vector<RowKind> kinds(static_cast<std::size_t>(groups * rows));
  filled_.resize(static_cast<std::size_t>(groups));
  // A row takes 2 ns, so this many rows take kLeastPieceNanoseconds.
  constexpr auto kLeastRows = static_cast<std::int64_t>(kLeastPieceNanoseconds / 2);
  parallel_for(groups, 1 + kLeastRows / rows, problem.executor, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      KeySet set = problem.key_set(i / kv_heads_, i % kv_heads_ * group_, document);
      attach(i / kv_heads_, i % kv_heads_, set);
      filled_[static_cast<std::size_t>(i)] = find_row_kinds(set, problem.empty_rows, group_, kinds.data() + i * rows) ? 1 : 0;
    }
  });
  kinds_ = std::move(kinds);
}

void MaskBlocks::attach(std::int64_t b, std::int64_t kv, KeySet& set) const {
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    const ConstTensorView& blocks = tables_[i].blocks;
    const auto slice = head_slice<const std::uint8_t>(blocks, b, kv * group_);
    set.masks[i].blocks = reinterpret_cast<const BlockKind*>(slice.data);
    set.masks[i].block_head = blocks.stride(-3), set.masks[i].block_row = slice.row_stride;
  }
  const std::int64_t group = b * kv_heads_ + kv;
  set.row_kinds = !kinds_.empty() && filled_[static_cast<std::size_t>(group)] != 0 ? kinds_.data() + group * group_ * set.queries : nullptr;
}

}  // namespace polyhead::cpu
