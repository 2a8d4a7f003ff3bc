#include <vector>

#include "core/index.h"
#include "core/interrupt.h"
#include "core/philox.h"
#include "core/text.h"
#include "polyhead/sdpa.h"

namespace polyhead {

void dropout_keep_bits(double p, std::uint64_t seed, TensorView keep) {
  require(static_cast<bool>(keep), "dropout_keep_bits: keep is missing");
  require(keep.dtype() == DType::boolean && keep.rank() >= 3, "dropout_keep_bits: keep is ", keep.dtype(), " ", keep.shape(),
          "; it must be bool [*,N,T,S]");
  require(p >= 0 && p <= 1, "dropout_keep_bits: the dropout probability is ", p, "; it must lie in [0,1]");
  const DropoutBits bits(p, seed);
  const std::int64_t keys = keep.extent(-1);
  const std::int64_t rows = numel(keep.shape().first(keep.rank() - 1));
  std::vector<std::uint8_t> row(static_cast<std::size_t>(keys));
  for (std::int64_t i = 0; i < rows && keys > 0; ++i) {
    check_interrupt();
    const std::int64_t t = i % keep.extent(-2), head = i / keep.extent(-2);
    bits.row(head / keep.extent(-3), head % keep.extent(-3), t, 0, keys, row.data());
    bool* target = keep.data<bool>() + offset_at(keep.shape().first(keep.rank() - 1), keep.strides().first(keep.rank() - 1), i);
    for (std::int64_t s = 0; s < keys; ++s) target[s * keep.stride(-1)] = row[static_cast<std::size_t>(s)] != 0;
  }
}

}  // namespace polyhead
