// A Mask says which keys a query may attend to: those that every given member of the Mask allows. A masked key does not affect the result, even if the key is
// NaN. The name of each boolean tensor says what `true` means. A Mask does not mask queries. In self-attention a padded position is a query too. If the input
// at that position is not finite, its row of the output is NaN; in training, the gradients of all parameters are then NaN too.
#pragma once

#include <cstdint>
#include <optional>

#include "polyhead/empty_rows.h"
#include "polyhead/named_members.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead {

// A diagonal of the [T,S] matrix of scores: the elements with s = t + offset.
struct Diagonal {
  enum class Corner : std::uint8_t { top_left, bottom_right, offset };
  Corner corner = Corner::top_left;
  std::int64_t shift = 0;  // the offset of a diagonal with Corner::offset; with another corner, a shift other than 0 is an Error

  static constexpr Diagonal top_left() { return {Corner::top_left, 0}; }          // the diagonal with offset 0: query 0 is aligned with key 0
  static constexpr Diagonal bottom_right() { return {Corner::bottom_right, 0}; }  // the diagonal with offset S - T: the last query is aligned with the last key
  static constexpr Diagonal offset(std::int64_t shift) { return {Corner::offset, shift}; }

  constexpr std::int64_t resolve(std::int64_t queries, std::int64_t keys) const {
    return corner == Corner::bottom_right ? keys - queries : corner == Corner::offset ? shift : 0;
  }
  friend constexpr bool operator==(const Diagonal&, const Diagonal&) = default;
};

// Causal attention: query t attends to the keys s <= t + offset.
using Causal = Diagonal;

// A window around the diagonal: query t attends to the keys s with -left <= s - (t + offset) <= right. Without `left` or without `right`, the window has no
// bound on that side. If the mask is causal, the offset is that of the causal diagonal; else it is that of `diagonal`, which is bottom right by default.
struct Window {
  [[no_unique_address]] NamedMembers named_members = NamedMembers();
  std::optional<std::int64_t> left{};
  std::optional<std::int64_t> right{};
  // The window's diagonal. Error if it differs from the diagonal of a causal mask. Error without `left` and `right`, unless the mask is causal or a relative
  // bias is given.
  std::optional<Diagonal> diagonal{};
};

// The sizes of the blocks of a block list: queries in a block of queries, and keys in a block of keys.
struct BlockSize {
  std::int64_t queries = 128, keys = 128;
};

// Lists, for each block of queries, the blocks of keys that these queries may attend to, like BlockMask of FlexAttention. The time and memory of a pass grow
// with the number of listed blocks. A dense mask of the same pairs of queries and keys would take T x S bytes.
struct BlockLists {
  [[no_unique_address]] NamedMembers named_members = NamedMembers();
  // Integers [*,N,ceil(T / size.queries),count], where * and N broadcast: the indices of blocks of keys, in any order; -1 fills unused places. A block that is
  // listed twice counts once. The rows of a block of queries without a listed block are empty.
  ConstTensorView lists{};
  BlockSize size{};
};

struct Mask {
  [[no_unique_address]] NamedMembers named_members = NamedMembers();
  std::optional<Causal> causal{};
  Window window{};
  ConstTensorView key_starts{};   // Integers >= 0, [*] per sequence or [*,T] per query: a query attends to the keys s >= start; to no key if start >= S.
  ConstTensorView key_lengths{};  // Integers in [0,S], [*] per sequence or [*,T] per query: a query attends to the keys s < length, counted from key 0.
  ConstTensorView attend{};       // Bool, broadcasts to [*,N,T,S]: true = the query may attend to the key. Error together with `block`.
  ConstTensorView block{};        // Bool, broadcasts to [*,N,T,S]: true = the query may not attend to the key.
  ConstTensorView attend_keys{};  // Bool, broadcasts to [*,S]: true = every query may attend to the key. Error together with `block_keys`.
  ConstTensorView block_keys{};   // Bool, broadcasts to [*,S]: true = no query may attend to the key.

  // Integers [*]: in sequence b the diagonal of the causal mask and of the window is s = t + diagonal_offsets[b]. This serves queries that continue sequences
  // of different lengths, for example from a cache: the offset is then the number of keys before the first query. Error unless the mask is causal (as top_left)
  // or has a window, or a relative bias is given; the window and the relative bias may then have no `diagonal`. Error together with documents. Each sequence
  // gets the same bits as in a call with that sequence alone and Diagonal::offset.
  ConstTensorView diagonal_offsets{};

  // Documents: several texts that are packed one after the other along T and S, the same for every sequence. Their borders are integers [D+1] that start at 0,
  // never decrease and end at T for query_offsets and at S for key_offsets (cu_seqlens of FlashAttention). A query attends only to keys of its own document. If
  // T == S, key_offsets may be left out; query_offsets then cut the keys too.
  // The result equals that of a call with each document alone, bit for bit: causal and window diagonals and empty rows are those of each document, so
  // bottom_right uses S - T of the document. Key starts, key lengths and dropout bits, however, use positions in the packed sequence. key_starts or key_lengths
  // [D] with D > 1 documents are an Error, because they could belong to sequences or to documents.
  ConstTensorView query_offsets{}, key_offsets{};

  // Block lists. If documents are given too, block i starts at position i x size of the packed sequence, not of a document.
  BlockLists blocks{};
};

}  // namespace polyhead
#pragma GCC visibility pop
