// The table of layouts. A layout is how one library or tutorial names and stores the parameters of its attention layer.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/empty_rows.h"

namespace polyhead::io {

// The form in which the file stores a parameter. AttentionParameters lists the canonical forms. A canonical form is a view of the stored form, so loading copies
// nothing.
// in, out: widths of a projection's input and output; E: width of the layer; N: heads; H, V: widths of a query/key and of a value head.
enum class Storage {
  canonical,
  transposed,      // (in,out)
  packed_rows,     // q, k, v stacked: [3E,E] or [3E]
  packed_columns,  // q, k, v side by side: [E,3E]
  heads_in,        // (in,N,H)
  heads_out,       // (N,V,out)
  heads_bias,      // (N,H)
};

struct Parameter {
  std::string name;       // name in the file, after the prefix, with '.' as separator
  std::string canonical;  // "q.weight"; "qkv.weight" if packed
  Storage storage = Storage::canonical;
  char group = 0;  // 0: required; otherwise a file has all parameters of a group or none
};

// The numbers K of key/value heads that a layout allows for N query heads.
enum class KeyHeads {
  as_query,   // K == N
  or_global,  // K == N, or K == 1 with a global query
  grouped,    // any K that divides N; it follows from the shapes
  divides,    // any K that divides N; only N / K follows from the shapes
};

struct Layout {
  std::string_view name, source, notes;
  std::vector<Parameter> parameters;
  // A second set of names for layers whose query, key and value inputs differ in width (torch); may be empty.
  std::vector<Parameter> otherwise = {};
  KeyHeads key_heads = KeyHeads::as_query;
  std::int64_t heads = 0;  // 0: any number
  std::optional<double> scale = {};
  bool causal = false;                         // the layer applies a causal mask itself
  bool rotary = false;                         // the model rotates q and k by position; the file does not say how
  bool zero_key_bias = false;                  // q and v have a bias but k has none; loading gives k a bias of zeros
  std::optional<EmptyRows> empty_rows = {};    // result of a row without attended keys; absent: NaN or unspecified
  char separator = '.';                        // separator between the parts of a name; with '/', names with '.' or with ":0" at the end are read too
  std::vector<std::string_view> refuses = {};  // a file with one of these modules ("out.") or tensors does not have this layout
  // Modules in which each tensor must be one of `parameters` or `buffers`: any other tensor, such as a table of positions, changes the result. "" is the module
  // at the prefix; a layer without a prefix may share its file with other tensors.
  std::vector<std::string_view> closed = {};
  std::vector<std::string_view> buffers = {};  // tensors that are no parameters
};

std::span<const Layout> layout_table();
std::string layout_names();  // "torch, bert, …"
const Layout& find_layout(std::string_view name, std::string_view caller);  // throws an Error if there is no layout of this name

}  // namespace polyhead::io
