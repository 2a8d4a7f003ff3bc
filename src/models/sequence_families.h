// The families of models with an encoder and a decoder, as data: how each family names its keys in config.json and its tensors, and which parts it has.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "polyhead/models/model_families.h"
#include "polyhead/models/sequence_to_sequence_model.h"

namespace polyhead::models {

// Keys of config.json. Empty: the family does not have this key.
struct SequenceKeys {
  std::string_view width = "d_model", encoder_layers = "encoder_layers", decoder_layers = "decoder_layers", encoder_heads = "encoder_attention_heads", decoder_heads = "decoder_attention_heads",
                   head_width = "", encoder_hidden_width = "encoder_ffn_dim", decoder_hidden_width = "decoder_ffn_dim", source_positions = "max_position_embeddings",
                   target_positions = "max_position_embeddings", features = "", scale_embedding = "scale_embedding", activation = "activation_function", epsilon = "";
  // Keys that published folders of this family contain and that transformers does not read.
  std::span<const std::string_view> without_effect{};
};

// Names of tensors without ".weight" and ".bias". Empty: the family has no such tensor.
struct SequenceTensors {
  std::string_view prefix = "model.";  // precedes all names except that of the output projection; a file of the model without its output projection has no prefix
  std::string_view shared = "shared", words = "embed_tokens";  // `shared`: embedding of both encoder and decoder; `words`: embedding of one of the two
  std::string_view encoder = "encoder.", decoder = "decoder.", layer = "layers.";  // `layer` and the layer's number come before the names of a layer
  // Names of tensors of the encoder or the decoder:
  std::string_view positions = "embed_positions", embedding_norm = "", final_norm = "";
  // Names of parts of a layer:
  std::string_view self_attention = "self_attn.", cross_attention = "encoder_attn.", self_attention_norm = "self_attn_layer_norm", cross_attention_norm = "encoder_attn_layer_norm",
                   encoder_feed_forward = "", decoder_feed_forward = "", encoder_feed_forward_norm = "final_layer_norm", decoder_feed_forward_norm = "final_layer_norm";
  // Names of tensors of an attention:
  std::string_view q = "q_proj", k = "k_proj", v = "v_proj", attention_output = "out_proj", relative_bias = "";  // relative_bias is in layer 0 of each stack
  // Names of tensors of a feed-forward part; `hidden` if it has no gate, else `gate` and `gated_hidden`:
  std::string_view hidden = "fc1", gate = "", gated_hidden = "", feed_forward_output = "fc2";
  std::string_view output = "lm_head", output_bias = "final_logits_bias";
  std::string_view convolution1 = "", convolution2 = "";  // tensors of the encoder
};

enum class SequencePositions : std::uint8_t {
  relative,    // score biases that depend on the distance between query and key
  learned,
  sinusoidal,  // sin in the first half of the features, cos in the second
};

// Tells whether the decoder's hidden states are divided by sqrt(E) before the output projection.
enum class OutputScale : std::uint8_t {
  none,
  by_key,  // as scale_decoder_outputs says; without this key: yes if tie_word_embeddings is true or missing
};

struct SequenceFamily {
  std::string_view model_type;
  SequenceKeys keys{};
  SequenceTensors tensors{};
  SequencePositions positions = SequencePositions::learned;
  std::int64_t position_offset = 0;
  nn::NormKind norm = nn::NormKind::layer_norm;
  nn::NormPosition norm_position = nn::NormPosition::post;
  bool bias = true;                         // whether linear layers have biases
  bool key_bias = true;                     // whether the projection k has a bias, too
  double epsilon = 1e-5;                    // used if the key is missing
  std::string_view activation = "gelu";     // used if the key is missing
  bool gated_by_activation = false;         // the name of the activation also tells whether there is a gate: "relu", "gated-gelu" (T5)
  std::optional<double> attention_scale{};  // absent: 1/sqrt(H)
  OutputScale output_scale = OutputScale::none;
  bool own_output = false;                  // the output projection may differ from the embedding (T5)
  bool may_split_embedding = false;         // reads share_encoder_decoder_embeddings and decoder_vocab_size (Marian)
  std::optional<std::int64_t> start_token{}, forced_last{};  // used if config.json lacks decoder_start_token_id or forced_eos_token_id
};

// The config as read from config.json. Two settings follow from the checkpoint later: the dtype, and whether there is a separate output projection.
struct SequenceConfigRead {
  SequenceToSequenceConfig config;
  // true: the output projection is tied unless the file has one that differs from the embedding; false: config.tied_output says whether it is tied
  bool output_by_file = false;
};
SequenceConfigRead read_sequence_config(const std::filesystem::path& path, const LanguageLoadOptions& options);

std::span<const SequenceFamily> sequence_family_rows();
// Returns the row of the table for a family. If the family is not known, the Error lists the known ones and names the nearest.
const SequenceFamily& find_sequence_family(std::string_view file, std::string_view model_type);
std::span<const ModelFamily> refused_sequence_families();
// Returns the reason why a family of models with encoder and decoder is not supported; empty if it is supported or unknown.
std::string_view refused_sequence_family(std::string_view model_type);

}  // namespace polyhead::models
