// Attention layers in files of tensors: which naming a layer follows, its parameters in one canonical form, and the way back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/empty_rows.h"
#include "polyhead/io/tensor_file.h"

namespace polyhead::io {

// How a file spells parameter names where a naming leaves a choice (Keras, Flax): "query/kernel:0", "query/kernel", "query.kernel".
struct Spelling {
  char separator = '.';
  std::string suffix;  // "" or ":0"

  friend bool operator==(const Spelling&, const Spelling&) = default;
};

// One attention layer. N, K, H, V as in docs/maths.md; Eq, Ek, Ev the widths of the query, key and value inputs, Eo of the output.
// Canonical tensors, each present or absent:
//   q.weight [N*H,Eq]   k.weight [K*H,Ek]   v.weight [K*V,Ev]   output.weight [Eo,N*V]   gate.weight [N*V,Eq]
//   q.bias [N*H]        k.bias [K*H]        v.bias [K*V]        output.bias [Eo]         gate.bias [N*V]
//   bias_k [1,1,K*H]    bias_v [1,1,K*V]    relative_attention_bias [buckets,N]
struct AttentionParameters {
  std::string layout;  // the name of a row of layouts()
  std::string prefix;  // of the parameters' names, with its separator: "encoder.layer.0."
  Spelling spelling;
  std::int64_t heads = 0, kv_heads = 0;  // 0: the file cannot tell, and the caller did not say
  std::optional<double> scale;           // absent: 1/sqrt(H). T5: 1
  bool causal = false;                   // the source of the naming masks by itself: no query looks at later keys
  std::optional<EmptyRows> empty_rows;   // what its rows without a key give; absent: the source does not say
  bool global_query = false;             // the query is averaged over the axis (AlphaFold's is_global)
  std::map<std::string, Tensor> tensors;
};

// A place in a file where a naming fits.
struct LayoutMatch {
  std::string layout;
  std::string prefix;
  Spelling spelling;
  std::int64_t heads = 0, kv_heads = 0;  // 0: the file cannot tell
  std::vector<std::string> names;        // of the tensors that make up the layer

  friend bool operator==(const LayoutMatch&, const LayoutMatch&) = default;
};

// Every (naming, prefix) that fits, in the order of the file's first tensor of each layer. Tensors that belong to no layer do not matter;
// an unknown one inside a module of the layer does (see docs/decisions/0003-file-formats.md).
std::vector<LayoutMatch> find_attention(const std::vector<NamedTensor>& tensors);

struct LoadAttention {
  std::string layout;      // empty: whichever fits
  std::optional<std::string> prefix{};  // absent: the only layer that fits; "": the one without a prefix. The last separator may be left out
  std::int64_t heads = 0;  // 0: as the file tells, else unknown
};

// The layer that `options` name. Its tensors share the memory of the file's (views: a kernel that the file stores as (in,out) is a
// transposed view), and keep their dtype. Error (format) when no naming fits: it names the nearest miss; when several layers or namings
// fit: it names the candidates. Error (invalid_argument) when the given heads are not the file's or do not divide the widths.
AttentionParameters load_attention(TensorFile& file, const LoadAttention& options = {});
AttentionParameters load_attention(const std::filesystem::path& path, const LoadAttention& options = {});

// The tensors of a layer under the names of `layout` at `prefix`: the exact inverse of load_attention, or a translation to another layout.
// Copies, row major. Error when the layout has no place for a tensor, lacks a required one, or means another scale or other heads.
std::vector<NamedTensor> store_attention(const AttentionParameters& weights, std::string_view layout, std::string_view prefix);
inline std::vector<NamedTensor> store_attention(const AttentionParameters& weights) {
  return store_attention(weights, weights.layout, weights.prefix);
}

struct LayoutDescription {
  std::string_view name;
  std::string_view source;              // whose naming it is
  std::vector<std::string> parameters;  // "in_proj_weight [3*E,E]", "in_proj_bias [3*E], optional"
  std::string_view notes;
  bool causal = false;                  // as in AttentionParameters
  std::optional<EmptyRows> empty_rows;  // the same
};

std::vector<LayoutDescription> layouts();

}  // namespace polyhead::io
