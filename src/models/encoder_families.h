// The encoder families as data: how each names its keys in config.json and its tensors, and which parts it has.
#pragma once

#include <span>
#include <string_view>

#include "polyhead/models/model_families.h"
#include "polyhead/nn/residual.h"

namespace polyhead::models {

// Keys of config.json. Empty: the family does not have this key.
struct EncoderKeys {
  std::string_view width = "hidden_size", layers = "num_hidden_layers", heads = "num_attention_heads", hidden_width = "intermediate_size",
                   positions = "max_position_embeddings", segments = "type_vocab_size", activation = "hidden_act", epsilon = "layer_norm_eps", embedding_width = "";
};

// Keys that are other names of width, layers and heads in `transformers` (its attribute_map). Empty: there is none.
struct EncoderAliases {
  std::string_view width = "", layers = "", heads = "";
};

// Names of tensors without ".weight" and ".bias". The names in a layer follow `layer` and the layer's number. Empty: the family has no such tensor.
struct EncoderTensors {
  std::string_view words = "embeddings.word_embeddings", positions = "embeddings.position_embeddings", segments = "embeddings.token_type_embeddings",
                   embedding_norm = "embeddings.LayerNorm", embedding_projection = "", relative_bias = "", layer = "encoder.layer.", final_norm = "";
  std::string_view q = "attention.self.query", k = "attention.self.key", v = "attention.self.value";  // if k and v are empty, q holds q, k and v
  std::string_view attention_output = "attention.output.dense", attention_norm = "attention.output.LayerNorm";
  // if layers have a gate, the tensor `hidden` holds the rows of the gate, then those of the hidden layer
  std::string_view hidden = "intermediate.dense", feed_forward_output = "output.dense", feed_forward_norm = "output.LayerNorm";
};

enum class EncoderPositions : std::uint8_t {
  from_zero,      // learned positions 0, 1, ...
  after_padding,  // learned positions pad_token_id + 1, pad_token_id + 2, ... for the tokens that are not padding
  rotary,
  by_type,  // after_padding or rotary, as the key position_embedding_type says
};

struct EncoderFamily {
  std::string_view model_type;
  EncoderKeys keys{};
  EncoderTensors tensors{};
  EncoderAliases aliases{};
  EncoderPositions positions = EncoderPositions::from_zero;
  nn::NormPosition norm_position = nn::NormPosition::post;
  std::string_view activation = "gelu";  // used if the key is missing
  double epsilon = 1e-12;                // used if the key is missing
  std::int64_t embedding_width = 0;      // used if the key is missing; 0: the family has no such key
  std::int64_t padding_token = -1;       // used if pad_token_id is missing; -1: the key is required for after_padding
  bool fixed_padding_token = false;      // pad_token_id is not read
  bool grouped_layers = false;           // layers share parameters, as num_hidden_groups and inner_group_num say (ALBERT)
  bool token_dropout = false;            // reads token_dropout and emb_layer_norm_before; embeddings of padding are zero (ESM)
  bool modernbert = false;               // has gates, windows from local_attention, biases as attention_bias, mlp_bias and norm_bias say, and no norm before layer 0
};

std::span<const EncoderFamily> encoder_family_rows();
std::span<const ModelFamily> refused_encoder_families();
// Returns the row of the table for a family. If the family is not known, the Error lists the known ones, or gives the reason why this family is refused.
const EncoderFamily& find_encoder_family(std::string_view file, std::string_view model_type);

}  // namespace polyhead::models
