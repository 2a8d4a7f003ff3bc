// Options of the commands attend, trace, explain and maps: masks, scale, dropout, empty rows. Dense masks and biases are not options but tensors in the
// input file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "polyhead/nn/multi_head_attention.h"
#include "polyhead/sdpa.h"

namespace polyhead::app {

struct AttentionRules {
  // value of --causal: top_left, bottom_right, an offset or "off"; "self" if it was given without a value; "" if not given (the layer decides)
  std::string causal;
  Window window;
  std::optional<Diagonal> window_diagonal;
  std::optional<std::vector<std::int64_t>> key_starts, key_lengths, diagonal_offsets, query_offsets, key_offsets;
  BlockSize block_size;  // size of the blocks that an element of the input tensor `blocks` stands for
  std::optional<double> scale, softcap, dropout;
  std::uint64_t dropout_seed = 0;
  std::optional<EmptyRows> empty_rows;
  std::optional<Precision> precision;
  std::optional<bool> mask_like_input;  // true if the dimensions of the masks attend_keys and block_keys are in the order of the layer's input
  // bidirectional, max_distance and bias_diagonal are properties of a relative bias
  std::optional<bool> bidirectional;
  std::optional<std::int64_t> max_distance;
  std::optional<Diagonal> bias_diagonal;
};

// Options that change a layer's configuration.
struct LayerRules {
  std::optional<int> axis;
  std::optional<nn::GlobalQuery> global_query;
  bool add_zero_attn = false;
  std::optional<double> rotary_base;  // base of the rotary embedding; 0 switches it off; absent if --rotary-base was not given
};

// Adds the options of AttentionRules, except those of key starts, key lengths and a relative bias. Returns the option --dropout.
Option* add_attention_rules(Parser& parser, AttentionRules* rules);
void add_precision(Parser& parser, AttentionRules* rules);
void add_key_bounds(Parser& parser, AttentionRules* rules);  // adds --key-starts and --key-lengths
void add_relative_bias(Parser& parser, AttentionRules* rules);
Option* add_mask_like_input(Parser& parser, AttentionRules* rules);
std::vector<Option*> add_layer_rules(Parser& parser, LayerRules* rules);

// The mask for `queries` x `keys` and leading dimensions `lead`. The mask has views of the lists in `rules`, so `rules` must outlive it. UsageError if the rules
// do not fit these sizes.
Mask mask_of(const AttentionRules& rules, const Shape& lead, std::int64_t queries, std::int64_t keys);

void apply(const AttentionRules& rules, nn::MultiHeadAttentionConfig* config);
void apply(const LayerRules& rules, nn::MultiHeadAttentionConfig* config);
void apply(const AttentionRules& rules, SdpaOptions* options);
void apply(const AttentionRules& rules, RelativeBias* bias);  // throws a UsageError if `rules` has an option that this kind of relative bias does not have

}  // namespace polyhead::app
