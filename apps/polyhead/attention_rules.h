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
  std::string causal;  // "" for the layer's default, "off", "self" for --causal without a value, top_left, bottom_right or an offset
  Window window;
  std::optional<Diagonal> window_diagonal;
  std::optional<std::vector<std::int64_t>> key_starts, key_lengths, diagonal_offsets, query_offsets, key_offsets;
  BlockSize block_size;  // block size for the tensor `blocks`
  std::optional<double> scale, softcap, dropout;
  std::uint64_t dropout_seed = 0;
  std::optional<EmptyRows> empty_rows;
  std::optional<Precision> precision;
  std::optional<bool> mask_like_input;  // whether the dimensions of attend_keys and block_keys have the order of the layer's input
  std::optional<bool> bidirectional;  // this member and the next two are properties of a relative bias
  std::optional<std::int64_t> max_distance;
  std::optional<Diagonal> bias_diagonal;
};

// Options that change a layer's configuration.
struct LayerRules {
  std::optional<int> axis;
  std::optional<nn::GlobalQuery> global_query;
  bool add_zero_attn = false;
  std::optional<double> rotary_base;  // 0: q and k are not rotated; absent: the option was not given
};

Option* add_attention_rules(Parser& parser, AttentionRules* rules);  // adds all options except those of key starts, key lengths and a relative bias; returns --dropout
void add_precision(Parser& parser, AttentionRules* rules);
void add_key_bounds(Parser& parser, AttentionRules* rules);  // --key-starts and --key-lengths
void add_relative_bias(Parser& parser, AttentionRules* rules);
Option* add_mask_like_input(Parser& parser, AttentionRules* rules);
std::vector<Option*> add_layer_rules(Parser& parser, LayerRules* rules);

// The mask for `queries` x `keys` and leading dimensions `lead`. The mask has views of the lists in `rules`, so `rules` must outlive it. UsageError if the rules
// do not fit these sizes.
Mask mask_of(const AttentionRules& rules, const Shape& lead, std::int64_t queries, std::int64_t keys);

void apply(const AttentionRules& rules, nn::MultiHeadAttentionConfig* config);
void apply(const LayerRules& rules, nn::MultiHeadAttentionConfig* config);
void apply(const AttentionRules& rules, SdpaOptions* options);
void apply(const AttentionRules& rules, RelativeBias* bias);  // UsageError for an option that this kind of relative bias does not have

}  // namespace polyhead::app
