#include "support/mapped_case.h"

namespace polyhead::test {

Mapped::Mapped(std::uint64_t seed, DType dtype, const Backend* backend) {
  Random random(seed);
  c = draw_case(random, dtype);
  c.options.backend = backend;
  o = c.make_outputs();
  c.forward(o);
  expected = naive_attention(c);
}

double Mapped::p(std::int64_t head, std::int64_t t, std::int64_t s) const {
  return static_cast<double>(expected.p[static_cast<std::size_t>((head * c.sizes.queries + t) * c.sizes.keys + s)]);
}

std::vector<std::int64_t> numbers(std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  return all;
}

std::pair<std::int64_t, std::int64_t> document_start(const Mask& mask, std::int64_t t) {
  if (!mask.query_offsets) return {0, 0};
  const std::vector<double> queries = to_doubles(mask.query_offsets), keys = mask.key_offsets ? to_doubles(mask.key_offsets) : queries;
  std::size_t d = 0;
  while (queries[d + 1] <= static_cast<double>(t)) ++d;
  return {static_cast<std::int64_t>(queries[d]), static_cast<std::int64_t>(keys[d])};
}

}  // namespace polyhead::test
