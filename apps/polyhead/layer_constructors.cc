#include "layer_constructors.h"

#include <algorithm>

#include "arguments.h"
#include "core/text.h"
#include "polyhead/io/attention_parameters.h"
#include "suggest.h"

namespace polyhead::app {
namespace {

using enum ArgumentType;
using Config = nn::MultiHeadAttentionConfig;

// A width that the heads share out.
std::int64_t per_head(const LayerArguments& a, std::string_view width, std::string_view heads) {
  const std::int64_t total = a.count(width), n = a.count(heads);
  if (total % n != 0) throw UsageError(cat(width, " = ", total, " does not divide into ", heads, " = ", n));
  return total / n;
}

Config single_head(const LayerArguments& a) {
  return {.query_width = a.count("input_dim"), .heads = 1, .head_width = a.count("dim_qk"), .value_head_width = a.count("dim_v"),
          .output = nn::OutputProjection::none};
}

// Query, key and value of one width, which is the output's too.
Config square(const LayerArguments& a, std::string_view width, std::string_view heads) {
  return {.query_width = a.count(width), .heads = a.count(heads), .head_width = per_head(a, width, heads)};
}

std::vector<LayerConstructor> make_table() {
  const std::vector<LayerArgument> one_head{{"input_dim", "32"}, {"dim_qk", "16"}, {"dim_v", "16"}};
  return {
      {.name = "multi_atten",
       .call = "Multi_atten",
       .source = "tutorials; widths are per head, no output map, mask (B,T,S) that is true where it blocks",
       .arguments = {{"emd_size", "48"}, {"q_k_size", "6"}, {"v_size", "6"}, {"head", "8"}},
       .heads = "head",
       .names = {.q = "Wq", .k = "Wk", .v = "Wv"},
       .config = [](const LayerArguments& a) -> Config {
         return {.query_width = a.count("emd_size"), .heads = a.count("head"), .head_width = a.count("q_k_size"), .value_head_width = a.count("v_size"),
                 .output = nn::OutputProjection::none};
       }},
      {.name = "self_attention",
       .layout = "single_head",
       .call = "SelfAttention",
       .source = "tutorials; one head, no output map",
       .arguments = one_head,
       .config = single_head},
      {.name = "cross_attention",
       .layout = "single_head",
       .call = "CrossAttention",
       .source = "tutorials; the query from the decoder, key and value from the encoder",
       .arguments = one_head,
       .config = single_head,
       .cross = true},
      {.name = "multi_head",
       .layout = "multi_head_dim_qk_dim_v",
       .call = "MultiHeadAttention",
       .source = "tutorials; dim_qk and dim_v are widths of all heads together",
       .arguments = {{"input_dim", "64"}, {"num_heads", "8"}, {"dim_qk", "64"}, {"dim_v", "64"}},
       .heads = "num_heads",
       .names = {.output = "out"},
       .config = [](const LayerArguments& a) -> Config {
         return {.query_width = a.count("input_dim"), .heads = a.count("num_heads"), .head_width = per_head(a, "dim_qk", "num_heads"),
                 .value_head_width = per_head(a, "dim_v", "num_heads")};
       }},
      {.name = "d2l",
       .call = "MultiHeadAttention",
       .source = "Dive into Deep Learning; valid lengths, a sequence of length 0 looks at every key alike",
       .arguments = {{"num_hiddens", "100"},
                     {"num_heads", "5"},
                     {"key_size", "num_hiddens"},
                     {"query_size", "num_hiddens"},
                     {"value_size", "num_hiddens"},
                     {"dropout", "0", number},
                     {"bias", "false", flag}},
       .heads = "num_heads",
       .names = {.q = "W_q", .k = "W_k", .v = "W_v", .output = "W_o"},
       .config = [](const LayerArguments& a) -> Config {
         const std::int64_t width = per_head(a, "num_hiddens", "num_heads");
         return {.query_width = a.count("query_size"),
                 .key_width = a.count("key_size"),
                 .value_width = a.count("value_size"),
                 .heads = a.count("num_heads"),
                 .head_width = width,
                 .output_width = a.count("num_hiddens"),
                 .bias = a.flag("bias"),
                 .output_bias = a.flag("bias"),
                 .dropout = a.number("dropout")};
       }},
      {.name = "alphafold",
       .call = "MultiHeadAttention",
       .source = "AlphaFold 2; any axis, pair bias, gate, global query",
       .arguments = {{"c_in", "8"},
                     {"c", "6"},
                     {"N_head", "4"},
                     {"attn_dim", "-2"},
                     {"gated", "false", flag},
                     {"is_global", "false", flag},
                     {"use_bias_for_embeddings", "false", flag}},
       .heads = "N_head",
       .names = {.q = "linear_q", .k = "linear_k", .v = "linear_v", .output = "linear_o", .gate = "linear_g"},
       .config = [](const LayerArguments& a) -> Config {
         return {.query_width = a.count("c_in"),
                 .heads = a.count("N_head"),
                 .head_width = a.count("c"),
                 .bias = a.flag("use_bias_for_embeddings"),
                 .gate = a.flag("gated") ? nn::Gate::sigmoid : nn::Gate::none,
                 .global_query = a.flag("is_global") ? nn::GlobalQuery::mean : nn::GlobalQuery::off,
                 .axis = static_cast<int>(std::clamp<std::int64_t>(a.integer("attn_dim"), -kMaxRank, kMaxRank))};
       }},
      {.name = "torch",
       .call = "torch.nn.MultiheadAttention",
       .source = "PyTorch, with batch_first=True",
       .arguments = {{"embed_dim", "24"},
                     {"num_heads", "4"},
                     {"dropout", "0", number},
                     {"bias", "true", flag},
                     {"add_bias_kv", "false", flag},
                     {"add_zero_attn", "false", flag},
                     {"kdim", "embed_dim"},
                     {"vdim", "embed_dim"}},
       .heads = "num_heads",
       .names = {.q = "in_proj q", .k = "in_proj k", .v = "in_proj v", .output = "out_proj"},
       .config = [](const LayerArguments& a) -> Config {
         const std::int64_t width = per_head(a, "embed_dim", "num_heads");
         return {.query_width = a.count("embed_dim"), .key_width = a.count("kdim"), .value_width = a.count("vdim"), .heads = a.count("num_heads"),
                 .head_width = width, .bias = a.flag("bias"), .output_bias = a.flag("bias"), .add_bias_kv = a.flag("add_bias_kv"),
                 .add_zero_attn = a.flag("add_zero_attn"), .dropout = a.number("dropout")};
       }},
      {.name = "bert",
       .call = "BertAttention",
       .source = "BERT in Hugging Face transformers",
       .arguments = {{"hidden_size", "768"}, {"num_attention_heads", "12"}},
       .heads = "num_attention_heads",
       .names = {.q = "attention.self.query", .k = "attention.self.key", .v = "attention.self.value", .output = "attention.output.dense"},
       .config = [](const LayerArguments& a) { return square(a, "hidden_size", "num_attention_heads"); }},
      {.name = "albert",
       .call = "AlbertAttention",
       .source = "ALBERT in Hugging Face transformers",
       .arguments = {{"hidden_size", "768"}, {"num_attention_heads", "12"}},
       .heads = "num_attention_heads",
       .names = {.q = "attention.query", .k = "attention.key", .v = "attention.value", .output = "attention.dense"},
       .config = [](const LayerArguments& a) { return square(a, "hidden_size", "num_attention_heads"); }},
      {.name = "gpt2",
       .call = "GPT2Attention",
       .source = "GPT-2 in Hugging Face transformers; causal",
       .arguments = {{"n_embd", "768"}, {"n_head", "12"}},
       .heads = "n_head",
       .names = {.q = "attn.c_attn q", .k = "attn.c_attn k", .v = "attn.c_attn v", .output = "attn.c_proj"},
       .config = [](const LayerArguments& a) { return square(a, "n_embd", "n_head"); }},
      {.name = "mingpt",
       .call = "CausalSelfAttention",
       .source = "minGPT, nanoGPT; causal",
       .arguments = {{"n_embd", "48"}, {"n_head", "3"}},
       .heads = "n_head",
       .names = {.q = "attn.c_attn q", .k = "attn.c_attn k", .v = "attn.c_attn v", .output = "attn.c_proj"},
       .config = [](const LayerArguments& a) { return square(a, "n_embd", "n_head"); }},
      {.name = "t5",
       .call = "T5Attention",
       .source = "T5 in Hugging Face transformers; scores are not scaled, a bias for each distance is added",
       .arguments = {{"d_model", "512"}, {"num_heads", "8"}, {"d_kv", "64"}},
       .heads = "num_heads",
       .names = {.output = "o"},
       .config = [](const LayerArguments& a) -> Config {
         return {.query_width = a.count("d_model"), .heads = a.count("num_heads"), .head_width = a.count("d_kv"), .bias = false, .output_bias = false,
                 .scale = 1.0};
       },
       .pair_bias = true},
      {.name = "keras",
       .call = "keras.layers.MultiHeadAttention",
       .source = "Keras; input_dim is the last extent of what it is built for",
       .arguments = {{"num_heads", "2"}, {"key_dim", "8"}, {"value_dim", "key_dim"}, {"use_bias", "true", flag}, {"input_dim", "16"}},
       .heads = "num_heads",
       .names = {.q = "query", .k = "key", .v = "value", .output = "attention_output"},
       .config = [](const LayerArguments& a) -> Config {
         return {.query_width = a.count("input_dim"), .heads = a.count("num_heads"), .head_width = a.count("key_dim"), .value_head_width = a.count("value_dim"),
                 .bias = a.flag("use_bias"), .output_bias = a.flag("use_bias")};
       }},
      {.name = "flax",
       .call = "flax.linen.MultiHeadDotProductAttention",
       .source = "Flax; input_dim is the last extent of what it is initialised with",
       .arguments = {{"num_heads", "2"},
                     {"input_dim", "16"},
                     {"qkv_features", "input_dim"},
                     {"out_features", "input_dim"},
                     {"use_bias", "true", flag}},
       .heads = "num_heads",
       .names = {.q = "query", .k = "key", .v = "value", .output = "out"},
       .config = [](const LayerArguments& a) -> Config {
         return {.query_width = a.count("input_dim"), .heads = a.count("num_heads"), .head_width = per_head(a, "qkv_features", "num_heads"),
                 .output_width = a.count("out_features"), .bias = a.flag("use_bias"), .output_bias = a.flag("use_bias")};
       }},
  };
}

template <class T>
T parsed(std::string_view name, const std::string& word, std::string_view what) {
  if (const auto value = parse<T>(word)) return *value;
  throw UsageError(cat(option_of(name), ": '", word, "' is not ", what));
}

}  // namespace

std::int64_t LayerArguments::integer(std::string_view name) const { return parsed<std::int64_t>(name, words.at(std::string(name)), "a whole number"); }

std::int64_t LayerArguments::count(std::string_view name) const {
  const std::int64_t value = integer(name);
  if (value < 1) throw UsageError(cat(option_of(name), ": ", value, " is too small; it must be at least 1"));
  return value;
}

double LayerArguments::number(std::string_view name) const { return parsed<double>(name, words.at(std::string(name)), "a number"); }

bool LayerArguments::flag(std::string_view name) const {
  const std::string& given = words.at(std::string(name));
  const std::string word = lower(given);
  if (word == "true" || word == "yes" || word == "1") return true;
  if (word == "false" || word == "no" || word == "0") return false;
  throw UsageError(cat(option_of(name), ": '", given, "' is neither true nor false"));
}

std::span<const LayerConstructor> layer_constructors() {
  static const std::vector<LayerConstructor> table = [] {
    std::vector<LayerConstructor> rows = make_table();
    const std::vector<io::LayoutDescription> layouts = io::layouts();
    for (LayerConstructor& row : rows) {
      if (row.layout.empty()) row.layout = row.name;
      const auto layout = std::ranges::find(layouts, row.layout, &io::LayoutDescription::name);
      row.causal = layout->causal;
      row.empty_rows = layout->empty_rows;
    }
    return rows;
  }();
  return table;
}

const LayerConstructor& find_constructor(const std::string& name) {
  std::vector<std::string> names;
  for (const LayerConstructor& row : layer_constructors()) {
    if (row.name == name) return row;
    names.emplace_back(row.name);
  }
  throw UsageError(cat("--layer: ", unknown_name(name, "layer", names)));
}

const LayerConstructor* constructor_of_layout(std::string_view layout) {
  const std::span<const LayerConstructor> rows = layer_constructors();
  const auto row = std::ranges::find(rows, layout, &LayerConstructor::layout);
  return row == rows.end() ? nullptr : &*row;
}

std::string option_of(std::string_view argument) {
  std::string name = cat("--", lower(argument));
  std::ranges::replace(name, '_', '-');
  return name;
}

LayerArguments complete(const LayerConstructor& constructor, const std::map<std::string, std::string>& given, std::optional<std::int64_t> heads) {
  LayerArguments result;
  for (const LayerArgument& argument : constructor.arguments) {
    const std::string name(argument.name);
    const auto found = given.find(option_of(name));
    const std::string word(found != given.end() ? found->second : result.has(argument.default_value) ? result.words.at(std::string(argument.default_value))
                                                                                                     : std::string(argument.default_value));
    result.words[name] = word.empty() && argument.type == flag ? "true" : word;
    if (heads && argument.name == constructor.heads) {
      if (found != given.end() && found->second != cat(*heads)) throw UsageError(cat("--heads and ", option_of(name), " differ"));
      result.words[name] = cat(*heads);
    }
    if (argument.type == flag) result.words[name] = result.flag(name) ? "true" : "false";
  }
  for (const auto& [option, word] : given) {
    const bool taken = std::ranges::any_of(constructor.arguments,
                                           [&name = option](const LayerArgument& argument) { return option_of(argument.name) == name; });
    if (taken) continue;
    std::string list;
    for (const LayerArgument& argument : constructor.arguments) append(list, cat(list.empty() ? "" : ", ", option_of(argument.name)));
    throw UsageError(cat(option, " is no argument of ", constructor.name, ", which takes ", list));
  }
  if (heads && constructor.heads.empty() && *heads != 1) throw UsageError(cat("--heads: ", constructor.name, " has one head"));
  return result;
}

std::string call_text(const LayerConstructor& constructor, const LayerArguments& arguments) {
  std::string text = cat(constructor.call, "(");
  for (const LayerArgument& argument : constructor.arguments) {
    append(text, cat(text.ends_with('(') ? "" : ", ", argument.name, "=", arguments.words.at(std::string(argument.name))));
  }
  return text + ")";
}

}  // namespace polyhead::app
