#include "attention_rules.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "core/join.h"
#include "core/option_words.h"
#include "format.h"
#include "parser.h"

namespace polyhead::app {
namespace {

constexpr std::string_view kBareCausal = "self", kOff = "off";

Diagonal read_diagonal(const std::string& word) {
  if (word == "top_left") return Diagonal::top_left();
  if (word == "bottom_right") return Diagonal::bottom_right();
  try {
    return Diagonal::offset(read_integer(word));
  } catch (const UsageError&) {
    throw UsageError(cat("'", word, "' is not a diagonal; give top_left, bottom_right or an offset, which is a whole number"));
  }
}

Window read_window(const std::string& word) {
  const std::size_t comma = word.find(',');
  if (comma == std::string::npos)
    throw UsageError(cat("'", word, "' is not a window; give LEFT,RIGHT, such as 128,0; a side without a number is unlimited"));
  Window window;
  const std::string left = word.substr(0, comma), right = word.substr(comma + 1);
  if (!left.empty()) window.left = read_count(left);
  if (!right.empty()) window.right = read_count(right);
  if (!window.left && !window.right) throw UsageError(cat("'", word, "' bounds no side; give a number for LEFT or for RIGHT, such as 128,0"));
  return window;
}

BlockSize read_block_size(const std::string& word) {
  const std::size_t comma = word.find(',');
  const std::int64_t queries = read_positive(word.substr(0, comma));
  return {.queries = queries, .keys = comma == std::string::npos ? queries : read_positive(word.substr(comma + 1))};
}

std::string read_causal(const std::string& word) {
  if (word.empty() || word == "true") return std::string(kBareCausal);  // --causal was given without a value
  if (word != kOff) read_diagonal(word);
  return word;
}

EmptyRows read_empty_rows(const std::string& word) { return read_enum<EmptyRows>(word, "kind of empty rows", kEmptyRowsWords); }
Precision read_precision(const std::string& word) { return read_enum<Precision>(word, "precision", kPrecisionWords); }
nn::GlobalQuery read_global_query(const std::string& word) { return read_enum<nn::GlobalQuery>(word, "kind of global query", kGlobalQueryWords); }

double read_rotary_base(const std::string& word) {
  if (word == kOff) return 0;
  const double base = read_number(word);
  if (!(base > 0)) throw UsageError(cat("the base is ", base, "; it must be above 0, or off"));
  return base;
}

bool read_switch(const std::string& word) {
  static const std::array<std::string, 2> kNames{"on", "off"};
  return read_choice(word, "switch", kNames) == "on";
}

}  // namespace

Option* add_attention_rules(Parser& parser, AttentionRules* rules) {
  add_value(parser, "--causal", &rules->causal, read_causal, "[DIAGONAL]",
            "queries attend to no key after the diagonal, which is top_left, bottom_right or an offset such as 3. The value may be left out if there are as "
            "many keys as queries. off: no causal mask, even if the layer's layout has one")
      ->value_is_optional();
  Option* window = add_value(parser, "--window", &rules->window, read_window, "LEFT,RIGHT",
                                  "attend only to keys at most LEFT before and RIGHT after the diagonal, such as 128,0; a side without a number is unlimited");
  add_value(parser, "--window-diagonal", &rules->window_diagonal, read_diagonal, "DIAGONAL",
            "the diagonal of the window (default: the causal diagonal, else bottom_right)")
      ->needs(window);
  add_value(parser, "--diagonal-offsets", &rules->diagonal_offsets, read_integers, "O,O,...",
            "for each sequence the offset O of the diagonal of --causal and --window: with --causal, query t attends to keys up to t + O. If the sequence has O keys before its first query, give O");
  add_value(parser, "--query-offsets", &rules->query_offsets, read_counts, "0,L,...,T",
            "the queries are those of several documents, one after the other. Give the first position of each document, and then T. Queries attend to keys of their own document only");
  add_value(parser, "--key-offsets", &rules->key_offsets, read_counts, "0,L,...,S", "the first key of each document, and then S (default: the query offsets)");
  add_value(parser, "--block-size", &rules->block_size, read_block_size, "QUERIES[,KEYS]", "how many queries and keys a block of the tensor `blocks` has (default: 128,128)");
  add_value(parser, "--scale", &rules->scale, read_number, "X",
            "the factor by which q.k is multiplied (default: that of the layer's layout, else 1/sqrt(H))");
  add_value(parser, "--softcap", &rules->softcap, read_number, "C", "replace each score by C tanh(score/C)");
  Option* dropout = add_value(parser, "--dropout", &rules->dropout, read_number, "P", "drop attention weights with probability P, as in training");
  add_value(parser, "--dropout-seed", &rules->dropout_seed, read_seed, "SEED", "seed of dropout (default: 0)")->needs(dropout);
  add_value(parser, "--empty-rows", &rules->empty_rows, read_empty_rows, "KIND",
            cat("output of a query that may attend to no key: ", join(kEmptyRowsWords), " (default: that of the layer's layout, else zero)"));
  return dropout;
}

void add_precision(Parser& parser, AttentionRules* rules) {
  add_value(parser, "--precision", &rules->precision, read_precision, "KIND",
            "how bfloat16 queries, keys and values are multiplied: native, as the processor multiplies bfloat16 where it can (default), or exact");
}

void add_key_bounds(Parser& parser, AttentionRules* rules) {
  add_value(parser, "--key-lengths,--valid-lens", &rules->key_lengths, read_counts, "L,L,...",
            "attend to the first L keys only: one length for each sequence, or one for each query, row by row, with commas or semicolons between");
  add_value(parser, "--key-starts", &rules->key_starts, read_counts, "N,N,...", "do not attend to the first N keys: one number for each sequence, or one for each query");
}

void add_relative_bias(Parser& parser, AttentionRules* rules) {
  add_value(parser, "--bidirectional", &rules->bidirectional, read_switch, "on|off",
            "on: the second half of relative_bias.table is for keys after the query (default); off: these keys have the first bucket of the table");
  add_value(parser, "--max-distance", &rules->max_distance, read_positive, "D", "keys at this distance or farther have the last bucket of relative_bias.table (default: 128)");
  add_value(parser, "--bias-diagonal", &rules->bias_diagonal, read_diagonal, "DIAGONAL",
            "the diagonal on which the distance of a relative bias is 0 (default: the diagonal of the mask, else bottom_right)");
}

Option* add_mask_like_input(Parser& parser, AttentionRules* rules) {
  return add_value(parser, "--mask-like-input", &rules->mask_like_input, read_switch, "on|off",
                   "if --axis is not -2, the order of the dimensions of the masks attend_keys and block_keys. on: the order of the input, without its width. off: [*,S], "
                   "with the axis at the end (default: off, but an error if the shape fits both)");
}

std::vector<Option*> add_layer_rules(Parser& parser, LayerRules* rules) {
  return {add_value(parser, "--axis", &rules->axis,
                    [](const std::string& word) {
                      const std::int64_t axis = read_integer(word);
                      if (axis < -kMaxRank || axis >= kMaxRank) throw UsageError(cat("there is no axis ", axis));
                      if (axis == -1) throw UsageError("axis -1, the last dimension, is the width; attention runs along a dimension before it");
                      return static_cast<int>(axis);
                    },
                    "AXIS", "the dimension of the inputs along which positions attend to each other (default: -2, the dimension before the width)"),
          add_value(parser, "--global-query", &rules->global_query, read_global_query, "KIND",
                    "average the query over the axis: off, mean or masked_mean (default: as the file says)"),
          add_value(parser, "--rotary", &rules->rotary_base, read_rotary_base, "BASE|off",
                    "rotary embedding: rotate q and k by their positions 0, 1, ... with this base, rope_theta in config.json, such as 10000. Frequencies are not scaled. "
                    "The layout llama needs this option. off: do not rotate"),
          parser.add_flag("--add-zero-attn", rules->add_zero_attn, "add a key and value of zeros, as torch's add_zero_attn")};
}

Mask mask_of(const AttentionRules& rules, const Shape& lead, std::int64_t queries, std::int64_t keys) {
  Mask mask;
  if (rules.causal == kBareCausal && queries != keys && !rules.diagonal_offsets) {
    throw UsageError(cat("--causal: there are ", queries, " queries and ", keys, " keys, so name the diagonal: top_left, bottom_right or an offset"));
  }
  if (!rules.causal.empty() && rules.causal != kOff) mask.causal = rules.causal == kBareCausal ? Diagonal::top_left() : read_diagonal(rules.causal);
  mask.window = rules.window;
  mask.window.diagonal = rules.window_diagonal;
  const auto list = [](const std::optional<std::vector<std::int64_t>>& given) {
    return given ? ConstTensorView(given->data(), {std::ssize(*given)}) : ConstTensorView();
  };
  mask.blocks.size = rules.block_size;
  mask.query_offsets = list(rules.query_offsets);
  mask.key_offsets = list(rules.key_offsets);
  if (rules.diagonal_offsets) {
    const std::int64_t count = std::ssize(*rules.diagonal_offsets);
    if (count != numel(lead)) {
      throw UsageError(cat("--diagonal-offsets: ", counted(count, "offset"), "; there must be ", numel(lead), ", one for each sequence"));
    }
    mask.diagonal_offsets = list(rules.diagonal_offsets).reshape(lead);
  }
  const auto bounds = [&](const char* option, const char* word, const std::optional<std::vector<std::int64_t>>& given) -> ConstTensorView {
    if (!given) return {};
    Shape shape = lead;
    const std::int64_t count = std::ssize(*given);
    if (count != numel(lead)) shape.push_back(queries);
    if (count != numel(shape)) {
      throw UsageError(cat(option, ": ", counted(count, word), "; there must be ", numel(lead), ", one for each sequence, or ", numel(lead) * queries, ", one for each query"));
    }
    return list(given).reshape(shape);
  };
  mask.key_starts = bounds("--key-starts", "start", rules.key_starts);
  mask.key_lengths = bounds("--key-lengths", "length", rules.key_lengths);
  return mask;
}

void apply(const AttentionRules& rules, nn::MultiHeadAttentionConfig* config) {
  if (rules.scale) config->scale = rules.scale;
  if (rules.softcap) config->softcap = *rules.softcap;
  if (rules.dropout) config->dropout = *rules.dropout;
  if (rules.empty_rows) config->empty_rows = *rules.empty_rows;
  if (rules.precision) config->precision = *rules.precision;
}

void apply(const LayerRules& rules, nn::MultiHeadAttentionConfig* config) {
  if (rules.axis) config->axis = *rules.axis;
  if (rules.global_query) config->global_query = *rules.global_query;
  config->add_zero_attn = config->add_zero_attn || rules.add_zero_attn;
}

void apply(const AttentionRules& rules, SdpaOptions* options) {
  options->scale = rules.scale;
  options->softcap = rules.softcap.value_or(0);
  options->dropout.p = rules.dropout.value_or(0);
  options->dropout.seed = rules.dropout_seed;
  options->empty_rows = rules.empty_rows.value_or(EmptyRows::zero);
  options->precision = rules.precision.value_or(Precision::native);
}

void apply(const AttentionRules& rules, RelativeBias* bias) {
  const auto require_tensor = [](bool given, bool has, const char* option, const char* tensor) {
    if (given && !has) throw UsageError(cat(option, ": the input tensors have no ", tensor));
  };
  require_tensor(rules.bidirectional.has_value(), static_cast<bool>(bias->table), "--bidirectional", "relative_bias.table");
  require_tensor(rules.max_distance.has_value(), static_cast<bool>(bias->table), "--max-distance", "relative_bias.table");
  require_tensor(rules.bias_diagonal.has_value(), static_cast<bool>(*bias), "--bias-diagonal", "relative_bias.slopes or relative_bias.table");
  bias->bidirectional = rules.bidirectional.value_or(bias->bidirectional);
  bias->max_distance = rules.max_distance.value_or(bias->max_distance);
  bias->diagonal = rules.bias_diagonal;
}

}  // namespace polyhead::app
