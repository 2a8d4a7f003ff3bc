#include "models/tokenizer/char_class.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace polyhead::models {
namespace {

struct CodeRange {
  char32_t first, last;
};
struct LowercaseRange {
  char32_t first, last;
  std::int32_t step, distance;
};

#include "models/tokenizer/unicode_tables.inc"

// The ranges of each class, in the order of CharClass.
constexpr std::span<const CodeRange> kClasses[] = {
    k_white_space,    k_removed_control, k_punctuation,   k_nonspacing_mark,    k_combining_mark,          k_numeric,           k_word,           k_canonical_decomposition,
    k_compatibility_decomposition, k_reordered, k_cluster_joined, k_cluster_prepend, k_cluster_control, k_cluster_pictograph, k_cluster_pictograph_extend, k_cluster_consonant,
    k_cluster_linker, k_cluster_linker_or_extend};

// Returns the range that holds `code`, or nullptr.
template <class Range>
const Range* find_range(std::span<const Range> ranges, char32_t code) {
  const auto after = std::ranges::upper_bound(ranges, code, {}, &Range::first);
  if (after == ranges.begin() || (after - 1)->last < code) return nullptr;
  return &*(after - 1);
}

}  // namespace

bool is_in(CharClass name, char32_t code) { return find_range(kClasses[static_cast<std::size_t>(name)], code) != nullptr; }

int lower_case(char32_t code, char32_t (&lower)[2]) {
  lower[0] = code;
  if (code == 0x130) {
    lower[0] = U'i';
    lower[1] = 0x307;
    return 2;
  }
  const auto* range = find_range(std::span<const LowercaseRange>(k_lowercase), code);
  if (range != nullptr && (code - range->first) % static_cast<char32_t>(range->step) == 0)
    lower[0] = static_cast<char32_t>(static_cast<std::int32_t>(code) + range->distance);
  return 1;
}

std::span<const StandIn> stand_ins() { return k_stand_ins; }

char32_t stand_in(char32_t code) {
  const StandIn* range = find_range(std::span<const StandIn>(k_stand_ins), code);
  return range == nullptr ? code : range->stand_in;
}

}  // namespace polyhead::models
