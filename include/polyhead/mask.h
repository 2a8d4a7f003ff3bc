// Which keys a query may attend to: the conjunction of the parts that are given. A masked key does not exist: nothing of it
// is read into the result. The name of each boolean tensor is its polarity.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "polyhead/empty_rows.h"
#include "polyhead/tensor_view.h"

namespace polyhead {

// Where the diagonal of a [T,S] score matrix runs: through the keys s = t + offset.
struct Diagonal {
  enum class Corner : std::uint8_t { top_left, bottom_right, offset };
  Corner corner = Corner::top_left;
  std::int64_t shift = 0;

  static constexpr Diagonal top_left() { return {Corner::top_left, 0}; }          // offset 0: query 0 sees key 0
  static constexpr Diagonal bottom_right() { return {Corner::bottom_right, 0}; }  // offset S - T: the last query sees the last key
  static constexpr Diagonal offset(std::int64_t shift) { return {Corner::offset, shift}; }

  constexpr std::int64_t resolve(std::int64_t queries, std::int64_t keys) const {
    return corner == Corner::bottom_right ? keys - queries : corner == Corner::offset ? shift : 0;
  }
  friend constexpr bool operator==(const Diagonal&, const Diagonal&) = default;
};

// Causal attention keeps s <= t + offset.
using Causal = Diagonal;

// Keeps -left <= s - (t + offset) <= right; a side that is not given is open. Counted from the causal diagonal when the mask
// is causal, else from `diagonal` (bottom right when that is not given either).
struct Window {
  std::optional<std::int64_t> left{};
  std::optional<std::int64_t> right{};
  std::optional<Diagonal> diagonal{};
};

struct Mask {
  std::optional<Causal> causal{};
  Window window{};
  ConstTensorView key_lengths{};  // integers in [0,S]: [*] per sequence or [*,T] per query; keeps s < length
  ConstTensorView attend{};       // bool, broadcasts to [*,N,T,S]: true = may attend. Not together with `block`.
  ConstTensorView block{};        // bool, broadcasts to [*,N,T,S]: true = may not attend
  ConstTensorView attend_keys{};  // bool, broadcasts to [*,S]: true = every query may attend to the key. Not with `block_keys`.
  ConstTensorView block_keys{};   // bool, broadcasts to [*,S]

  // Calls f(name, view) for every tensor that is given.
  template <class F>
  void visit(F&& f) const {
    const auto part = [&](std::string_view name, const ConstTensorView& view) {
      if (view) f(name, view);
    };
    part("key_lengths", key_lengths);
    part("attend", attend);
    part("block", block);
    part("attend_keys", attend_keys);
    part("block_keys", block_keys);
  }
};

}  // namespace polyhead
