// A random problem for tests of attention maps, with the attention weights that the maps must show.
#pragma once

#include <numeric>
#include <utility>
#include <vector>

#include "support/attention_case.h"

namespace polyhead::test {

// A random problem, with lse and the attention weights p computed by the naive formula.
struct Mapped {
  AttentionCase c;
  AttentionOutputs o;
  FullResults expected;
  Mapped(std::uint64_t seed, DType dtype, const Backend* backend);
  MapsInput input() const { return {.q = c.q, .k = c.k}; }
  std::int64_t heads() const { return numel(c.sizes.lead) * c.sizes.heads(); }
  double p(std::int64_t head, std::int64_t t, std::int64_t s) const;
};

// Returns the list 0, 1, ..., count - 1.
std::vector<std::int64_t> numbers(std::int64_t count);

// Returns the first query and the first key of the document that packed query t belongs to.
std::pair<std::int64_t, std::int64_t> document_start(const Mask& mask, std::int64_t t);

}  // namespace polyhead::test
