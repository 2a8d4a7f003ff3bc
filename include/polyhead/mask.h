// A Mask says which keys a query may attend to: the keys that every given member of Mask allows. A masked key does not affect the result, even if the key is
// NaN. The name of each boolean tensor says what `true` means. Queries are not masked. In self-attention a padded position is a query too: if the padded input
// is not finite, its row of the output is NaN and, in training, so are the gradients of all parameters.
#pragma once

#include <cstdint>
#include <optional>

#include "polyhead/empty_rows.h"
#include "polyhead/named_members.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead {

// Where the diagonal of a [T,S] score matrix runs: through the keys s = t + offset.
struct Diagonal {
  enum class Corner : std::uint8_t { top_left, bottom_right, offset };
  Corner corner = Corner::top_left;
  std::int64_t shift = 0;  // the offset, if corner is Corner::offset; for the other corners it must be 0, else Error

  static constexpr Diagonal top_left() { return {Corner::top_left, 0}; }          // offset 0: query 0 is aligned with key 0
  static constexpr Diagonal bottom_right() { return {Corner::bottom_right, 0}; }  // offset S - T: the last query is aligned with the last key
  static constexpr Diagonal offset(std::int64_t shift) { return {Corner::offset, shift}; }

  constexpr std::int64_t resolve(std::int64_t queries, std::int64_t keys) const {
    return corner == Corner::bottom_right ? keys - queries : corner == Corner::offset ? shift : 0;
  }
  friend constexpr bool operator==(const Diagonal&, const Diagonal&) = default;
};

// Causal attention: query t attends to the keys s <= t + offset.
using Causal = Diagonal;

// Query t attends to the keys s with -left <= s - (t + offset) <= right. If `left` or `right` is not given, the window has no bound in that direction. The offset
// is the offset of the causal diagonal if the mask is causal, else the offset of `diagonal`, by default bottom right.
struct Window {
  [[no_unique_address]] NamedMembers named_members = NamedMembers();
  std::optional<std::int64_t> left{};
  std::optional<std::int64_t> right{};
  std::optional<Diagonal> diagonal{};  // Error without left and right, unless the mask is causal or a relative bias is given
};

// The number of queries in a block of queries, and of keys in a block of keys.
struct BlockSize {
  std::int64_t queries = 128, keys = 128;
};

// Lists for each block of queries the blocks of keys that these queries may attend to, as BlockMask of FlexAttention does. Time and memory of a
// forward and of a backward pass grow with the number of listed blocks; a dense mask of the same pairs has T x S bytes.
struct BlockLists {
  [[no_unique_address]] NamedMembers named_members = NamedMembers();
  // Integers [*,N,ceil(T / size.queries),count], where * and N broadcast: indices of blocks of keys in any order; -1 fills unused places. Listing a block
  // twice is the same as listing it once. A block of queries without a listed block has empty rows.
  ConstTensorView lists{};
  BlockSize size{};
};

struct Mask {
  [[no_unique_address]] NamedMembers named_members = NamedMembers();
  std::optional<Causal> causal{};
  Window window{};
  ConstTensorView key_starts{};   // integers from 0 on: [*] per sequence or [*,T] per query; a query attends to the keys s >= start, to none if start >= S
  ConstTensorView key_lengths{};  // integers in [0,S]: [*] per sequence or [*,T] per query; a query attends to the keys s < length, counted from key 0
  ConstTensorView attend{};       // bool, broadcasts to [*,N,T,S]: true = the query may attend to the key. Not together with `block`.
  ConstTensorView block{};        // bool, broadcasts to [*,N,T,S]: true = the query may not attend to the key
  ConstTensorView attend_keys{};  // bool, broadcasts to [*,S]: true = every query may attend to the key. Not with `block_keys`.
  ConstTensorView block_keys{};   // bool, broadcasts to [*,S]: true = no query may attend to the key

  // Integers [*]: in sequence b the causal and window diagonals run through s = t + diagonal_offsets[b]. This serves queries that continue sequences
  // of different lengths, for example from a cache: the offset is then the number of keys before the first query. Needs causal (as top_left), a window or a
  // relative bias; the window and the relative bias may name no diagonal. Error together with documents. Each sequence gets the same bits as in a
  // call with that sequence alone and Diagonal::offset.
  ConstTensorView diagonal_offsets{};

  // Documents packed one after the other along T and S, the same for every sequence: integers [D+1] that start at 0, never decrease and end at
  // T for query_offsets and at S for key_offsets (cu_seqlens of FlashAttention). Queries of a document attend to the keys of that document only. Causal and
  // window diagonals and empty rows are those of each document alone: for bottom_right, S - T is computed from the document's lengths. The result equals that of
  // a call with each document alone, bit for bit. Key starts, key lengths and dropout bits use positions in the packed sequence. key_starts or key_lengths [D] with
  // D > 1 documents are an Error, because they could belong to sequences or to documents. If T == S, key_offsets may be left out; query_offsets then cut the keys too.
  ConstTensorView query_offsets{}, key_offsets{};

  // If documents are given too, block i starts at position i x size of the packed sequence, not of a document.
  BlockLists blocks{};
};

}  // namespace polyhead
#pragma GCC visibility pop
