// Loads attention layers from files of tensors, and stores layers in files. A layout is the names and the storage of the parameters in one source of layers,
// such as torch or bert.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/empty_rows.h"
#include "polyhead/io/tensor_file.h"

#pragma GCC visibility push(default)
namespace polyhead::io {

// How a file spells parameter names. Keras and Flax files have several spellings: "query/kernel:0", "query/kernel", "query.kernel".
struct Spelling {
  char separator = '.';
  std::string suffix;  // "" or ":0"

  friend bool operator==(const Spelling&, const Spelling&) = default;
};

// The parameters of one attention layer. N, K, H and V are as in docs/maths.md; Eq, Ek, Ev, Eo are the widths of the query, key and value inputs and of the output.
// `tensors` holds these tensors under these canonical names; each may be absent:
//   q.weight [N*H,Eq]   k.weight [K*H,Ek]   v.weight [K*V,Ev]   output.weight [Eo,N*V]   gate.weight [N*V,Eq]
//   q.bias [N*H]        k.bias [K*H]        v.bias [K*V]        output.bias [Eo]         gate.bias [N*V]
//   bias_k [1,1,K*H]    bias_v [1,1,K*V]    relative_attention_bias [buckets,N]    sink [N]
struct AttentionParameters {
  std::string layout;  // the name of the parameters' layout, one of those in layouts()
  std::string prefix;  // the beginning of the parameters' names, separator included: "encoder.layer.0."
  Spelling spelling;
  std::int64_t heads = 0, kv_heads = 0;  // numbers of query heads and of key/value heads; 0: unknown
  std::optional<double> scale;           // factor of the scores; absent: 1/sqrt(H). A T5 layer has 1.
  bool causal = false;                   // true: the layer itself applies a causal mask
  bool rotary = false;                   // true: the model rotates q and k by position; the caller gives the rotary tables (nn::AttentionOptions::rotary)
  std::optional<EmptyRows> empty_rows;   // the layer's result for a query without attended keys; absent: unknown
  bool global_query = false;             // true: the layer has one query, the mean of the query input over the axis (AlphaFold's is_global)
  std::map<std::string, Tensor> tensors;
};

// A layer found in a file.
struct LayoutMatch {
  std::string layout;
  std::string prefix;
  Spelling spelling;
  std::int64_t heads = 0, kv_heads = 0;  // numbers of query heads and of key/value heads; 0: unknown
  std::vector<std::string> names;        // the names of the layer's tensors in the file

  friend bool operator==(const LayoutMatch&, const LayoutMatch&) = default;
};

// Returns every layer whose tensors fit a layout completely, in the order of the layers' first tensors in the file. A module that has an unknown tensor fits no
// layout (docs/decisions/0003-file-formats.md). Unknown tensors outside of attention modules are ignored.
std::vector<LayoutMatch> find_attention(const std::vector<NamedTensor>& tensors);

struct LoadAttention {
  std::string layout;                   // name of the layout; empty: any layout
  std::optional<std::string> prefix{};  // absent: any prefix; "": the layer has no prefix. The last separator may be left out.
  std::int64_t heads = 0;               // number of query heads; 0: it is taken from the file, and stays unknown (0) if the file does not say it
};

// Returns the only layer of the file that fits `options`. Its tensors are views of the file's tensors in the file's dtype, transposed where the file
// stores [in,out]. Error (format) when no layer fits, with the nearest misses, or when several fit, with their names. Error (invalid_argument) when
// the given heads contradict the file or do not divide the widths. If q and v have a bias and k has none, k gets a bias of zeros.
AttentionParameters load_attention(TensorFile& file, const LoadAttention& options = {});
AttentionParameters load_attention(const std::filesystem::path& path, const LoadAttention& options = {});

// Returns row-major copies of a layer's tensors under the names that `layout` gives them, with `prefix` before the names. The last separator of the prefix may
// be left out. With the layout that the layer was loaded from, this is the exact inverse of load_attention(); another layout translates the layer. Error if the
// layout has no place for a tensor, needs a tensor that is missing, or implies another scale or another number of heads.
std::vector<NamedTensor> store_attention(const AttentionParameters& parameters, std::string_view layout, std::string_view prefix);
inline std::vector<NamedTensor> store_attention(const AttentionParameters& parameters) {
  return store_attention(parameters, parameters.layout, parameters.prefix);
}

struct LayoutDescription {
  std::string_view name;
  std::string_view source;              // the module of another library whose parameters have these names
  std::vector<std::string> parameters;  // names and shapes: "in_proj_weight [3*E,E]", "in_proj_bias [3*E], optional"
  std::string_view notes;
  bool causal = false;                  // causal, rotary and empty_rows are the values that AttentionParameters of this layout have
  bool rotary = false;
  std::optional<EmptyRows> empty_rows;
  std::map<std::string, std::string> projections;  // the layout's names of the projections q, k, v, output and gate, as far as it has them: "q" -> "W_q"
};

std::vector<LayoutDescription> layouts();

}  // namespace polyhead::io
#pragma GCC visibility pop
