// Options of commands that run attention: which pairs, which score, what an empty row gives. Tensors (dense masks, biases) come from files.
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
  std::string causal;  // "" (as the layer is), "off", "self" (the option without a value), top_left, bottom_right or an offset
  Window window;
  std::optional<Diagonal> window_diagonal;
  std::vector<std::int64_t> key_lengths;
  bool has_key_lengths = false;
  std::optional<double> scale, softcap, dropout;
  std::uint64_t dropout_seed = 0;
  std::optional<EmptyRows> empty_rows;
};

// What a layer is beyond its parameters.
struct LayerRules {
  std::optional<int> axis;
  std::optional<nn::GlobalQuery> global_query;
  bool add_zero_attn = false;
};

void add_attention_rules(CLI::App& parser, AttentionRules* rules);  // all but the key lengths
void add_key_lengths(CLI::App& parser, AttentionRules* rules);
std::vector<CLI::Option*> add_layer_rules(CLI::App& parser, LayerRules* rules);

// The rules as a mask for queries and keys of these sizes; *lengths becomes the memory of the key lengths. UsageError where they do not fit.
Mask mask_of(const AttentionRules& rules, const Shape& lead, std::int64_t queries, std::int64_t keys, Tensor* lengths);

void apply(const AttentionRules& rules, nn::MultiHeadAttentionConfig* config);
void apply(const LayerRules& rules, nn::MultiHeadAttentionConfig* config);
void apply(const AttentionRules& rules, SdpaOptions* options);

}  // namespace polyhead::app
