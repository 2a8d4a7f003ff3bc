#include "io/layouts.h"

#include <algorithm>

#include "core/join.h"
#include "io/json.h"
#include "io/layout_storage.h"
#include "polyhead/io/attention_parameters.h"

namespace polyhead::io {
namespace {

constexpr char kBias = 'b', kGate = 'g', kExtraKey = 'k', kEmbeddingBias = 'e', kRelative = 'r', kSink = 's';

// Returns the weight and the bias of each torch.nn.Linear in `modules` (pairs of the name in the file and the canonical name), and then the parameters in `more`.
// Parameter::group is `output_group` for the bias of the module "output", `group` for the other biases; weights are required.
std::vector<Parameter> linear(std::initializer_list<std::pair<std::string, std::string>> modules, char group = kBias, char output_group = kBias, const std::vector<Parameter>& more = {}) {
  std::vector<Parameter> list;
  for (const auto& [name, canonical] : modules) list.push_back({name + ".weight", canonical + ".weight"});
  for (const auto& [name, canonical] : modules) list.push_back({name + ".bias", canonical + ".bias", Storage::canonical, canonical == "output" ? output_group : group});
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

// Returns the parameters of Keras and Flax layers, whose tensors have a separate dimension for the heads.
std::vector<Parameter> by_heads(const std::string& output) {
  using enum Storage;
  return {{"query.kernel", "q.weight", heads_in},       {"key.kernel", "k.weight", heads_in},
          {"value.kernel", "v.weight", heads_in},       {output + ".kernel", "output.weight", heads_out},
          {"query.bias", "q.bias", heads_bias, kBias},  {"key.bias", "k.bias", heads_bias, kBias},
          {"value.bias", "v.bias", heads_bias, kBias},  {output + ".bias", "output.bias", canonical, kBias}};
}

std::vector<Layout> make_table() {
  using enum Storage;
  return {
      {.name = "torch",
       .source = "torch.nn.MultiheadAttention",
       .notes = "in_proj_weight if kdim and vdim equal embed_dim, else q_proj_weight, k_proj_weight and v_proj_weight; add_zero_attn "
                "has no parameter",
       .parameters = {{"in_proj_weight", "qkv.weight", packed_rows},
                      {"out_proj.weight", "output.weight"},
                      {"in_proj_bias", "qkv.bias", packed_rows, kBias},
                      {"out_proj.bias", "output.bias", canonical, kBias},
                      {"bias_k", "bias_k", canonical, kExtraKey},
                      {"bias_v", "bias_v", canonical, kExtraKey}},
       .otherwise = {{"q_proj_weight", "q.weight"},
                     {"k_proj_weight", "k.weight"},
                     {"v_proj_weight", "v.weight"},
                     {"out_proj.weight", "output.weight"},
                     {"in_proj_bias", "qkv.bias", packed_rows, kBias},
                     {"out_proj.bias", "output.bias", canonical, kBias},
                     {"bias_k", "bias_k", canonical, kExtraKey},
                     {"bias_v", "bias_v", canonical, kExtraKey}}},
      {.name = "bert",
       .source = "BERT in Hugging Face transformers",
       .notes = "prefixes such as encoder.layer.0.",
       .parameters = linear({{"attention.self.query", "q"},
                             {"attention.self.key", "k"},
                             {"attention.self.value", "v"},
                             {"attention.output.dense", "output"}}),
       .closed = {"attention.self"},
       .buffers = {"attention.self.relative_position_index"}},
      {.name = "albert",
       .source = "ALBERT in Hugging Face transformers",
       .notes = "one group of parameters serves several layers",
       .parameters = linear({{"attention.query", "q"}, {"attention.key", "k"}, {"attention.value", "v"}, {"attention.dense", "output"}})},
      {.name = "gpt2",
       .source = "GPT-2 in Hugging Face transformers",
       .notes = "matrices are (in,out); c_attn is [E,3*E], and [3*E,E] in minGPT",
       .parameters = {{"attn.c_attn.weight", "qkv.weight", packed_columns},
                      {"attn.c_proj.weight", "output.weight", transposed},
                      {"attn.c_attn.bias", "qkv.bias", packed_rows, kBias},
                      {"attn.c_proj.bias", "output.bias", canonical, kBias}},
       .causal = true},
      {.name = "mingpt",
       .source = "minGPT, nanoGPT",
       .notes = "the names of GPT-2, matrices are (out,in): c_attn is [3*E,E]",
       .parameters = {{"attn.c_attn.weight", "qkv.weight", packed_rows},
                      {"attn.c_proj.weight", "output.weight"},
                      {"attn.c_attn.bias", "qkv.bias", packed_rows, kBias},
                      {"attn.c_proj.bias", "output.bias", canonical, kBias}},
       .causal = true},
      {.name = "llama",
       .source = "Llama, Mistral, Qwen 2 and gpt-oss in Hugging Face transformers",
       .notes = "prefixes such as model.layers.0.self_attn.; the caller gives the rotary positions of q and k; normalised queries and keys "
                "(q_norm, k_norm) are not supported",
       .parameters = linear({{"q_proj", "q"}, {"k_proj", "k"}, {"v_proj", "v"}, {"o_proj", "output"}}, kEmbeddingBias, kBias, {{"sinks", "sink", canonical, kSink}}),
       .key_heads = KeyHeads::divides,
       .causal = true,
       .rotary = true,
       .refuses = {"q_norm.", "k_norm."},
       .closed = {""},
       .buffers = {"rotary_emb.inv_freq"}},
      {.name = "bart",
       .source = "BART, Marian, OPT and CLIP in Hugging Face transformers",
       .notes = "prefixes such as model.encoder.layers.0.self_attn.; self-attention of decoders and of CLIP's text model is causal, but the names do not say so",
       .parameters = linear({{"q_proj", "q"}, {"k_proj", "k"}, {"v_proj", "v"}, {"out_proj", "output"}}),
       .closed = {""}},
      {.name = "whisper",
       .source = "Whisper in Hugging Face transformers",
       .notes = "prefixes such as model.encoder.layers.0.self_attn.; k has no bias; self-attention of the decoder is causal, but the names do not say so",
       .parameters = {{"q_proj.weight", "q.weight"},
                      {"k_proj.weight", "k.weight"},
                      {"v_proj.weight", "v.weight"},
                      {"out_proj.weight", "output.weight"},
                      {"q_proj.bias", "q.bias"},
                      {"v_proj.bias", "v.bias"},
                      {"out_proj.bias", "output.bias"}},
       .zero_key_bias = true,
       .closed = {""}},
      {.name = "distilbert",
       .source = "DistilBERT in Hugging Face transformers",
       .notes = "prefixes such as transformer.layer.0.",
       .parameters = linear({{"attention.q_lin", "q"}, {"attention.k_lin", "k"}, {"attention.v_lin", "v"}, {"attention.out_lin", "output"}}),
       .closed = {"attention"}},
      {.name = "mpnet",
       .source = "MPNet in Hugging Face transformers",
       .notes = "prefixes such as encoder.layer.0.; all layers add the bias of encoder.relative_attention_bias; the caller gives this bias",
       .parameters = linear({{"attention.attn.q", "q"}, {"attention.attn.k", "k"}, {"attention.attn.v", "v"}, {"attention.attn.o", "output"}}),
       .closed = {"attention.attn"}},
      {.name = "modernbert",
       .source = "ModernBERT in Hugging Face transformers",
       .notes = "prefixes such as layers.0.; the caller gives the rotary positions of q and k; two of three layers have a window, but the names do not say which",
       .parameters = {{"attn.Wqkv.weight", "qkv.weight", packed_rows},
                      {"attn.Wo.weight", "output.weight"},
                      {"attn.Wqkv.bias", "qkv.bias", packed_rows, kBias},
                      {"attn.Wo.bias", "output.bias", canonical, kBias}},
       .rotary = true,
       .refuses = {"attn.q_norm.", "attn.k_norm."}},
      {.name = "vit",
       .source = "ViT, DeiT and DINOv2 in Hugging Face transformers",
       .notes = "prefixes such as encoder.layer.0.; q, k and v may lack biases (qkv_bias)",
       .parameters = linear({{"attention.attention.query", "q"}, {"attention.attention.key", "k"}, {"attention.attention.value", "v"}, {"attention.output.dense", "output"}}, kEmbeddingBias, 0),
       .closed = {"attention.attention"}},
      {.name = "timm",
       .source = "Attention of timm's VisionTransformer, of DINO and of MAE",
       .notes = "prefixes such as blocks.0.attn.; normalised queries and keys (q_norm, k_norm) and relative positions are not supported",
       .parameters = {{"qkv.weight", "qkv.weight", packed_rows},
                      {"proj.weight", "output.weight"},
                      {"qkv.bias", "qkv.bias", packed_rows, kEmbeddingBias},
                      {"proj.bias", "output.bias", canonical, kBias}},
       .refuses = {"q_norm.", "k_norm.", "q_bias", "v_bias", "relative_position_bias_table", "rel_pos_h", "rel_pos_w", "logit_scale"},
       .closed = {""}},
      {.name = "t5",
       .source = "T5Attention in Hugging Face transformers",
       .notes = "prefixes such as encoder.block.0.layer.0.SelfAttention.; scores are not scaled; only a stack's first layer has the "
                "relative_attention_bias",
       .parameters = {{"q.weight", "q.weight"},
                      {"k.weight", "k.weight"},
                      {"v.weight", "v.weight"},
                      {"o.weight", "output.weight"},
                      {"relative_attention_bias.weight", "relative_attention_bias", canonical, kRelative}},
       .scale = 1.0},
      {.name = "d2l",
       .source = "d2l MultiHeadAttention(key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias)",
       .notes = "a row without a valid key is EmptyRows::uniform",
       .parameters = linear({{"W_q", "q"}, {"W_k", "k"}, {"W_v", "v"}, {"W_o", "output"}}),
       .empty_rows = EmptyRows::uniform},
      {.name = "alphafold",
       .source = "MultiHeadAttention(c_in, c, N_head, attn_dim, gated, is_global, use_bias_for_embeddings), OpenFold's Attention",
       .notes = "is_global: linear_k and linear_v have one head; a row without a valid key is EmptyRows::unmasked, because adding the same -1e9 to all scores of a row changes nothing in float64",
       .parameters = {{"linear_q.weight", "q.weight"},
                      {"linear_k.weight", "k.weight"},
                      {"linear_v.weight", "v.weight"},
                      {"linear_o.weight", "output.weight"},
                      {"linear_o.bias", "output.bias"},
                      {"linear_q.bias", "q.bias", canonical, kEmbeddingBias},
                      {"linear_k.bias", "k.bias", canonical, kEmbeddingBias},
                      {"linear_v.bias", "v.bias", canonical, kEmbeddingBias},
                      {"linear_g.weight", "gate.weight", canonical, kGate},
                      {"linear_g.bias", "gate.bias", canonical, kGate}},
       .key_heads = KeyHeads::or_global,
       .empty_rows = EmptyRows::unmasked},
      {.name = "multi_atten",
       .source = "Multi_atten(emd_size, q_k_size, v_size, head)",
       .notes = "no output projection; q_k_size and v_size are widths of one head",
       .parameters = linear({{"Wq", "q"}, {"Wk", "k"}, {"Wv", "v"}}),
       .refuses = {"Wo."}},
      {.name = "multi_head_dim_qk_dim_v",
       .source = "MultiHeadAttention(input_dim, num_heads, dim_qk, dim_v)",
       .notes = "dim_qk and dim_v are widths of all heads together",
       .parameters = linear({{"q", "q"}, {"k", "k"}, {"v", "v"}, {"out", "output"}})},
      {.name = "single_head",
       .source = "SelfAttention(input_dim, dim_qk, dim_v), CrossAttention(input_dim, dim_qk, dim_v)",
       .notes = "one head, no output projection; self and cross attention have the same parameters",
       .parameters = linear({{"q", "q"}, {"k", "k"}, {"v", "v"}}),
       .heads = 1,
       .refuses = {"o.", "out."}},
      {.name = "keras",
       .source = "keras.layers.MultiHeadAttention, GroupedQueryAttention",
       .notes = "names with or without \":0\", '/' or '.' between their parts",
       .parameters = by_heads("attention_output"),
       .key_heads = KeyHeads::grouped,
       .separator = '/'},
      {.name = "flax",
       .source = "flax.linen.MultiHeadDotProductAttention",
       .notes = "'/' or '.' between the parts of names; normalised queries and keys (query_ln, key_ln) are not supported",
       .parameters = by_heads("out"),
       .key_heads = KeyHeads::grouped,
       .separator = '/',
       .refuses = {"query_ln.", "key_ln."}},
  };
}

std::string shape_of(const Parameter& parameter) {
  const std::string_view canonical = parameter.canonical;
  const std::string_view in = canonical[0] == 'k' ? "Ek" : canonical[0] == 'v' ? "Ev" : "Eq";
  const std::string_view heads = canonical[0] == 'k' || canonical[0] == 'v' ? "K" : "N", width = canonical[0] == 'v' ? "V" : "H";
  const bool bias = canonical.ends_with(".bias");
  switch (parameter.storage) {
    case Storage::packed_rows:
      return bias ? "[3*E]" : "[3*E,E]";
    case Storage::packed_columns:
      return "[E,3*E]";
    case Storage::heads_in:
      return cat("[", in, ",", heads, ",", width, "]");
    case Storage::heads_out:
      return "[N,V,Eo]";
    case Storage::heads_bias:
      return cat("[", heads, ",", width, "]");
    case Storage::transposed:
      return "[N*V,Eo]";
    case Storage::canonical:
      break;
  }
  if (canonical == "relative_attention_bias") return "[buckets,N]";
  if (canonical.starts_with("output")) return bias ? "[Eo]" : "[Eo,N*V]";
  if (canonical.starts_with("gate")) return bias ? "[N*V]" : "[N*V,Eq]";
  if (canonical == "sink") return "[N]";
  if (canonical.starts_with("bias_")) return canonical == "bias_k" ? "[1,1,K*H]" : "[1,1,K*V]";
  return bias ? cat("[", heads, "*", width, "]") : cat("[", heads, "*", width, ",", in, "]");
}

}  // namespace

std::span<const Layout> layout_table() {
  static const std::vector<Layout> table = make_table();
  return table;
}

std::string layout_names() { return join(layout_table(), &Layout::name); }

const Layout& find_layout(std::string_view name, std::string_view caller) {
  const auto row = std::ranges::find(layout_table(), name, &Layout::name);
  require(row != layout_table().end(), caller, ": the layout ", quote(name), " is not known; ", layout_names(), " are");
  return *row;
}

std::vector<LayoutDescription> layouts() {
  std::vector<LayoutDescription> list;
  for (const Layout& layout : layout_table()) {
    LayoutDescription& row =
        list.emplace_back(LayoutDescription{layout.name, layout.source, {}, layout.notes, layout.causal, layout.rotary, layout.empty_rows, {}});
    for (const Parameter& parameter : layout.parameters) {
      const std::string module = parameter.name.substr(0, parameter.name.find_last_of("._"));  // "W_q" of "W_q.weight"
      const std::vector<std::string> names = canonical_names(parameter);
      for (const std::string& name : names) {
        const std::string projection = name.substr(0, name.find('.'));
        if (name.ends_with(".weight")) row.projections[projection] = names.size() == 1 ? module : cat(module, " ", projection);
      }
    }
    for (const std::vector<Parameter>* parameters : {&layout.parameters, &layout.otherwise}) {
      for (const Parameter& parameter : *parameters) {
        std::string name(parameter.name);
        std::ranges::replace(name, '.', layout.separator);
        std::string text = cat(name, " ", shape_of(parameter), parameter.group == 0 ? "" : ", optional");
        if (std::ranges::find(row.parameters, text) == row.parameters.end()) row.parameters.push_back(std::move(text));
      }
    }
  }
  return list;
}

}  // namespace polyhead::io
