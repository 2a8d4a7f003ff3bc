#include "cpu/sdpa/mask_blocks.h"

#include "core/index.h"
#include "core/parallel.h"

namespace polyhead::cpu {
namespace {

// Whether any byte is true, and whether any is false.
struct Truths {
  bool some_true = false, some_false = false;
  bool both() const { return some_true && some_false; }
};

void read_row(const std::uint8_t* bytes, std::int64_t stride, std::int64_t count, Truths& truths) {
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
    truths.some_true |= any(ones), truths.some_false |= any(zeros);
  }
  for (; i < count; ++i) (bytes[i * stride] != 0 ? truths.some_true : truths.some_false) = true;
}

std::int64_t blocks_of(std::int64_t extent, std::int64_t block) { return (extent + block - 1) / block; }

}  // namespace

MaskBlocks::MaskBlocks(const Problem& problem) {
  const Document& document = problem.documents.front();
  for (int i = 0; i < problem.rules->mask_count; ++i) {
    const DenseMask& mask = problem.rules->masks[static_cast<std::size_t>(i)];
    const ConstTensorView bytes = mask.tensor.slice(-2, document.queries.first, document.queries.last).slice(-1, document.keys.first, document.keys.last);
    Shape shared = bytes.shape();  // extent 1 for axes with stride 0
    for (int axis = 0; axis < shared.size(); ++axis) {
      if (bytes.stride(axis) == 0 && shared[axis] > 1) shared[axis] = 1;
    }
    const std::int64_t rows = shared[-2], columns = shared[-1], row_stride = bytes.stride(-2), column_stride = bytes.stride(-1);
    const std::int64_t key_blocks = blocks_of(bytes.extent(-1), kPairBlockKeys);
    Shape shape = shared;
    shape[-2] = blocks_of(rows, kPairBlockQueries), shape[-1] = key_blocks;
    Table& table = tables_[static_cast<std::size_t>(i)];
    table.memory = Tensor::uninitialised(DType::u8, shape);
    auto* const answers = reinterpret_cast<PairBlock*>(table.memory.data<std::uint8_t>());
    const auto* const data = static_cast<const std::uint8_t*>(bytes.data());
    const std::int64_t row_blocks = shape[-2], planes = numel(shape.first(shape.size() - 2));
    const Shape heads = shared.first(shared.size() - 2);
    const Strides strides = bytes.strides().first(shared.size() - 2);
    constexpr std::int64_t kLeastBytes = 200'000;  // can be read in the time to wake a thread
    const std::int64_t grain = 1 + kLeastBytes / (1 + kPairBlockQueries * bytes.extent(-1));
    parallel_for(planes * row_blocks, grain, problem.executor, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t index = first; index < last; ++index) {
        const std::int64_t begin = index % row_blocks * kPairBlockQueries, end = std::min(rows, begin + kPairBlockQueries);
        const std::uint8_t* const plane = data + offset_at(heads, strides, index / row_blocks);
        for (std::int64_t block = 0; block < key_blocks; ++block) {
          const std::int64_t key = columns == 1 ? 0 : block * kPairBlockKeys, count = std::min(kPairBlockKeys, columns - key);
          Truths truths;
          for (std::int64_t t = begin; t < end && !truths.both(); ++t) read_row(plane + t * row_stride + key * column_stride, column_stride, count, truths);
          const bool some = mask.attend ? truths.some_true : truths.some_false;
          answers[index * key_blocks + block] = truths.both() ? PairBlock::partial : some ? PairBlock::full : PairBlock::skip;
        }
      }
    });
    Shape whole = bytes.shape();
    whole[-2] = rows == 1 ? blocks_of(whole[-2], kPairBlockQueries) : row_blocks, whole[-1] = key_blocks;
    table.answers = ConstTensorView(table.memory.view()).expand(whole);
  }
}

void MaskBlocks::attach(std::int64_t b, std::int64_t first_head, KeySet& set) const {
  for (int i = 0; i < set.plane_count; ++i) {
    const ConstTensorView& answers = tables_[static_cast<std::size_t>(i)].answers;
    const auto slice = head_slice<const std::uint8_t>(answers, b, first_head);
    set.planes[i].blocks = reinterpret_cast<const PairBlock*>(slice.data);
    set.planes[i].block_head = answers.stride(-3), set.planes[i].block_row = slice.row_stride;
  }
}

}  // namespace polyhead::cpu
