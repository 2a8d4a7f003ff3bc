// The table of namings: how each source of attention layers names and stores the parameters that AttentionParameters holds.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "polyhead/empty_rows.h"

namespace polyhead::io {

// From the shape in the file to the canonical one; each is a view, so none costs a copy.
enum class Storage {
  canonical,
  transposed,      // (in,out)
  packed_rows,     // q, k, v below each other: [3E,E] or [3E]
  packed_columns,  // q, k, v side by side: [E,3E]
  heads_in,        // (in,N,H)
  heads_out,       // (N,V,out)
  heads_bias,      // (N,H)
};

struct Parameter {
  std::string_view name;       // in the file, after the prefix; '.' between its parts
  std::string_view canonical;  // "q.weight"; "qkv.weight" where it is packed
  Storage storage = Storage::canonical;
  char group = 0;  // 0: required; else all parameters of a group are there, or none
};

enum class KeyHeads {
  as_query,   // K == N
  or_global,  // K == N, or one key/value head and an averaged query
  grouped,    // any K that divides N, told by the shapes
};

struct Layout {
  std::string_view name, source, notes;
  std::vector<Parameter> parameters;
  // A second set of names for layers whose query, key and value inputs differ in width (torch); may be empty.
  std::vector<Parameter> otherwise = {};
  KeyHeads key_heads = KeyHeads::as_query;
  std::int64_t heads = 0;  // 0: a free choice
  std::optional<double> scale = {};
  bool causal = false;                         // the source masks by itself
  std::optional<EmptyRows> empty_rows = {};    // what its rows without a key give; absent: NaN, or whatever the caller makes of it
  char separator = '.';                        // '/': '.' is read too, and a ":0" after every name
  std::vector<std::string_view> refuses = {};  // modules that make the layer another one when they are beside it
};

std::span<const Layout> layout_table();
const Layout* find_layout(std::string_view name);  // nullptr: there is none
std::string layout_names();                        // "torch, bert, …"

}  // namespace polyhead::io
