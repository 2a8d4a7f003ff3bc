#include "sdpa/dense_mask.h"

#include "core/index.h"
#include "sdpa/normal_form.h"

namespace polyhead {

Tensor dense_mask(const char* operation, const Mask& mask, const Shape& lead, std::int64_t heads, std::int64_t queries, std::int64_t keys) {
  const ConstTensorView pairs = mask.attend ? mask.attend : mask.block;
  const auto differs = [](const ConstTensorView& view) { return view && view.rank() >= 3 && view.extent(-3) != 1; };
  const bool per_head = differs(pairs) || differs(mask.blocks.lists);
  if (!per_head) heads = 1;
  // q and k have no elements, because normal_form() reads only their shapes.
  const Tensor q(DType::f32, appended(lead, {heads, queries, 0})), k(DType::f32, appended(lead, {heads, keys, 0}));
  ProblemMemory memory;
  const MapsProblem p = normal_form(MapsInput{.q = q, .k = k}, SdpaOptions{.mask = mask}, MapValue::score, operation, memory);

  Tensor dense(DType::boolean, appended(lead, {heads, queries, keys}));
  std::vector<std::uint8_t> attend;
  for (std::int64_t head = 0; head < p.batch * p.heads; ++head) {
    const std::int64_t b = head / p.heads, n = head % p.heads;
    const auto target = head_slice<bool>(dense.view(), b, n);
    for (std::int64_t t = 0; t < queries; ++t) {
      attended_keys(p, b, n, t, attend);
      for (std::int64_t s = 0; s < keys; ++s) target(t, s) = attend[static_cast<std::size_t>(s)] != 0;
    }
  }
  return dense;
}

}  // namespace polyhead
