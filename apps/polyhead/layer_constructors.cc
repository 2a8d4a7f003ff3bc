#include "layer_constructors.h"

#include <algorithm>

#include "arguments.h"
#include "core/join.h"
#include "polyhead/nn/embedding.h"
#include "suggest.h"

namespace polyhead::app {
namespace {

using Config = nn::MultiHeadAttentionConfig;

const std::vector<LayerConstructor>& table() {
  using enum Setting;
  static const std::vector<LayerArgument> one_head{{"input_dim", query_width, "32"}, {"dim_qk", head_width, "16"}, {"dim_v", value_head_width, "16"}};
  static const Config one_head_config{.heads = 1, .output = nn::OutputProjection::none};
  static const std::vector<LayerConstructor> rows{
      {.name = "multi_atten",
       .call = "Multi_atten",
       .source = "tutorials; widths are per head, no output projection, mask (B,T,S) that is true where it blocks",
       .arguments = {{"emd_size", query_width, "48"}, {"q_k_size", head_width, "6"}, {"v_size", value_head_width, "6"}, {"head", heads, "8"}},
       .config = {.output = nn::OutputProjection::none}},
      {.name = "self_attention",
       .call = "SelfAttention",
       .source = "tutorials; one head, no output projection",
       .arguments = one_head,
       .config = one_head_config,
       .io_layout = "single_head"},
      {.name = "cross_attention",
       .call = "CrossAttention",
       .source = "tutorials; the query from the decoder, key and value from the encoder",
       .arguments = one_head,
       .config = one_head_config,
       .io_layout = "single_head",
       .cross = true},
      {.name = "multi_head",
       .call = "MultiHeadAttention",
       .source = "tutorials; dim_qk and dim_v are widths of all heads together",
       .arguments = {{"input_dim", query_width, "64"}, {"num_heads", heads, "8"}, {"dim_qk", total_head_width, "64"}, {"dim_v", total_value_head_width, "64"}},
       .io_layout = "multi_head_dim_qk_dim_v"},
      {.name = "d2l",
       .call = "MultiHeadAttention",
       .source = "Dive into Deep Learning; valid lengths, a sequence of length 0 attends to all keys equally",
       .arguments = {{"num_hiddens", hidden_width, "100"},
                     {"num_heads", heads, "5"},
                     {"key_size", key_width, "num_hiddens"},
                     {"query_size", query_width, "num_hiddens"},
                     {"value_size", value_width, "num_hiddens"},
                     {"dropout", dropout, "0"},
                     {"bias", bias, "false"}}},
      {.name = "alphafold",
       .call = "MultiHeadAttention",
       .source = "AlphaFold 2; any axis, pair bias, gate, global query",
       .arguments = {{"c_in", query_width, "8"},
                     {"c", head_width, "6"},
                     {"N_head", heads, "4"},
                     {"attn_dim", axis, "-2"},
                     {"gated", gate, "false"},
                     {"is_global", global_query, "false"},
                     {"use_bias_for_embeddings", input_bias, "false"}}},
      {.name = "torch",
       .call = "torch.nn.MultiheadAttention",
       .source = "PyTorch, with batch_first=True",
       .arguments = {{"embed_dim", model_width, "24"},
                     {"num_heads", heads, "4"},
                     {"dropout", dropout, "0"},
                     {"bias", bias, "true"},
                     {"add_bias_kv", add_bias_kv, "false"},
                     {"add_zero_attn", add_zero_attn, "false"},
                     {"kdim", key_width, "embed_dim"},
                     {"vdim", value_width, "embed_dim"}}},
      {.name = "bert",
       .call = "BertAttention",
       .source = "BERT in Hugging Face transformers",
       .arguments = {{"hidden_size", model_width, "768"}, {"num_attention_heads", heads, "12"}}},
      {.name = "albert",
       .call = "AlbertAttention",
       .source = "ALBERT in Hugging Face transformers",
       .arguments = {{"hidden_size", model_width, "768"}, {"num_attention_heads", heads, "12"}}},
      {.name = "distilbert",
       .call = "DistilBertSelfAttention",
       .source = "DistilBERT in Hugging Face transformers",
       .arguments = {{"dim", model_width, "768"}, {"n_heads", heads, "12"}}},
      {.name = "mpnet",
       .call = "MPNetSelfAttention",
       .source = "MPNet in Hugging Face transformers; a bias for each distance is added",
       .arguments = {{"hidden_size", model_width, "768"}, {"num_attention_heads", heads, "12"}},
       .pair_bias = true},
      {.name = "gpt2",
       .call = "GPT2Attention",
       .source = "GPT-2 in Hugging Face transformers; causal",
       .arguments = {{"n_embd", model_width, "768"}, {"n_head", heads, "12"}}},
      {.name = "mingpt",
       .call = "CausalSelfAttention",
       .source = "minGPT, nanoGPT; causal",
       .arguments = {{"n_embd", model_width, "48"}, {"n_head", heads, "3"}}},
      {.name = "t5",
       .call = "T5Attention",
       .source = "T5 in Hugging Face transformers; scores are not scaled, a bias for each distance is added",
       .arguments = {{"d_model", query_width, "512"}, {"num_heads", heads, "8"}, {"d_kv", head_width, "64"}},
       .config = {.bias = false, .output_bias = false, .scale = 1.0},
       .pair_bias = true},
      {.name = "keras",
       .call = "keras.layers.MultiHeadAttention",
       .source = "Keras; input_dim is the last dimension of the shape that the layer is built with",
       .arguments = {{"num_heads", heads, "2"},
                     {"key_dim", head_width, "8"},
                     {"value_dim", value_head_width, "key_dim"},
                     {"use_bias", bias, "true"},
                     {"input_dim", query_width, "16"}}},
      {.name = "flax",
       .call = "flax.linen.MultiHeadDotProductAttention",
       .source = "Flax; input_dim is the last dimension of the input that the layer is initialised with",
       .arguments = {{"num_heads", heads, "2"},
                     {"input_dim", query_width, "16"},
                     {"qkv_features", total_head_width, "input_dim"},
                     {"out_features", output_width, "input_dim"},
                     {"use_bias", bias, "true"}}},
  };
  return rows;
}

// Reads an argument's value; an error names the option.
template <class T>
T value_of(const LayerArguments& arguments, const LayerArgument& argument, T (*read)(const std::string&)) {
  try {
    return read(arguments.find(argument.name)->second);
  } catch (const UsageError& error) {
    throw UsageError(cat(option_of(argument.name), ": ", error.what()));
  }
}

bool read_flag(const std::string& given) {
  const std::string word = lower(given);
  if (word == "true" || word == "yes" || word == "1") return true;
  if (word == "false" || word == "no" || word == "0") return false;
  throw UsageError(cat("'", given, "' is neither true nor false"));
}

}  // namespace

std::span<const LayerConstructor> layer_constructors() { return table(); }

const LayerConstructor& find_constructor(const std::string& name) {
  std::vector<std::string> names;
  for (const LayerConstructor& row : table()) {
    if (row.name == name) return row;
    names.emplace_back(row.name);
  }
  throw UsageError(cat("--layer: ", unknown_name(name, "layer", names)));
}

std::string option_of(std::string_view argument) {
  std::string name = cat("--", lower(argument));
  std::ranges::replace(name, '_', '-');
  return name;
}

LayerArguments complete(const LayerConstructor& constructor, const std::map<std::string, std::string>& given, std::optional<std::int64_t> heads) {
  LayerArguments result;
  std::vector<std::string> options;
  for (const LayerArgument& argument : constructor.arguments) {
    const std::string& option = options.emplace_back(option_of(argument.name));
    std::string& word = result[std::string(argument.name)];
    const auto other = result.find(argument.default_value);
    word = other != result.end() ? other->second : std::string(argument.default_value);
    const auto found = given.find(option);
    if (found != given.end()) word = found->second;
    if (heads && argument.setting == Setting::heads) {
      if (found != given.end() && word != cat(*heads)) throw UsageError(cat("--heads and ", option, " differ"));
      word = cat(*heads);
    }
    if (argument.is_flag()) word = word.empty() || value_of(result, argument, read_flag) ? "true" : "false";
  }
  for (const auto& [option, word] : given) {
    if (std::ranges::find(options, option) != options.end()) continue;
    const std::string list = join(options);
    options.emplace_back("--heads");  // every constructor accepts --heads
    const std::string near = closest(option, options);
    throw UsageError(cat(option, " is not an argument of ", constructor.name, ", which takes ", list,
                         near.empty() ? "" : cat("; did you mean '", near, "'?")));
  }
  if (heads && *heads != 1 && !constructor.takes(Setting::heads)) throw UsageError(cat("--heads: ", constructor.name, " has one head"));
  return result;
}

nn::MultiHeadAttentionConfig config_of(const LayerConstructor& constructor, const LayerArguments& arguments) {
  Config c = constructor.config;
  for (const LayerArgument& argument : constructor.arguments) {
    if (argument.setting == Setting::heads) c.heads = value_of(arguments, argument, read_positive);
  }
  for (const LayerArgument& argument : constructor.arguments) {
    const auto width = [&] { return value_of(arguments, argument, read_positive); };
    const auto width_of_head = [&] {
      if (width() % c.heads != 0) throw UsageError(cat(option_of(argument.name), ": ", width(), " does not divide into ", c.heads, " heads"));
      return width() / c.heads;
    };
    const bool on = argument.is_flag() && value_of(arguments, argument, read_flag);
    switch (argument.setting) {
      case Setting::heads: break;
      case Setting::query_width: c.query_width = width(); break;
      case Setting::key_width: c.key_width = width(); break;
      case Setting::value_width: c.value_width = width(); break;
      case Setting::head_width: c.head_width = width(); break;
      case Setting::value_head_width: c.value_head_width = width(); break;
      case Setting::output_width: c.output_width = width(); break;
      case Setting::total_head_width: c.head_width = width_of_head(); break;
      case Setting::total_value_head_width: c.value_head_width = width_of_head(); break;
      case Setting::model_width: c.query_width = width(), c.head_width = width_of_head(); break;
      case Setting::hidden_width: c.output_width = width(), c.head_width = width_of_head(); break;
      case Setting::dropout: c.dropout = value_of(arguments, argument, read_number); break;
      case Setting::axis: c.axis = static_cast<int>(std::clamp<std::int64_t>(value_of(arguments, argument, read_integer), -kMaxRank, kMaxRank)); break;
      case Setting::bias: c.bias = c.output_bias = on; break;
      case Setting::input_bias: c.bias = on; break;
      case Setting::gate: c.gate = on ? nn::Gate::sigmoid : nn::Gate::none; break;
      case Setting::global_query: c.global_query = on ? nn::GlobalQuery::mean : nn::GlobalQuery::off; break;
      case Setting::add_bias_kv: c.add_bias_kv = on; break;
      case Setting::add_zero_attn: c.add_zero_attn = on; break;
    }
  }
  return c;
}

std::string call_text(const LayerConstructor& constructor, const LayerArguments& arguments) {
  const auto given = [&](const LayerArgument& argument) { return cat(argument.name, "=", arguments.find(argument.name)->second); };
  return cat(constructor.call, "(", join(constructor.arguments, given), ")");
}

io::LayoutDescription layout_called(std::string_view name) {
  const std::vector<io::LayoutDescription> layouts = io::layouts();
  return *std::ranges::find(layouts, name, &io::LayoutDescription::name);
}

void copy_inputs(nn::Linear* projection) {
  fill(projection->weight, 0);
  const std::int64_t outputs = projection->weight.extent(0), inputs = projection->weight.extent(1);
  for (std::int64_t i = 0; i < outputs; ++i) fill(projection->weight.view().select(0, i).slice(0, i % inputs, i % inputs + 1), i / inputs % 2 == 0 ? 1 : -1);
  if (projection->bias) fill(projection->bias, 0);
}

Tensor random_numbers(const Shape& shape, DType dtype, std::uint64_t seed) {
  if (numel(shape) == 0) return {dtype, shape};
  // an embedding table is initialised with normal numbers of standard deviation 1
  nn::Embedding table({.count = numel(shape), .width = 1, .dtype = dtype, .seed = seed});
  return Tensor::share(table.weight.view().reshape(shape), table.weight.owner());
}

}  // namespace polyhead::app
