#include "models/sequence_families.h"

#include <array>

#include "core/join.h"
#include "core/text.h"
#include "models/family_table.h"
#include "polyhead/models/sequence_to_sequence_model.h"

namespace polyhead::models {
namespace {

constexpr std::string_view kOfT5[] = {"classifier_dropout", "dropout_rate", "initializer_factor", "n_positions", "output_past"};

constexpr SequenceFamily t5(std::string_view model_type, std::string_view activation, OutputScale scale, std::optional<std::int64_t> start_token) {
  return {.model_type = model_type,
          .keys = {.encoder_layers = "num_layers", .decoder_layers = "num_decoder_layers", .encoder_heads = "num_heads", .decoder_heads = "num_heads", .head_width = "d_kv",
                   .encoder_hidden_width = "d_ff", .decoder_hidden_width = "d_ff", .source_positions = "", .target_positions = "", .activation = "feed_forward_proj",
                   .epsilon = "layer_norm_epsilon", .without_effect = kOfT5},
          .tensors = {.prefix = "", .layer = "block.", .positions = "", .final_norm = "final_layer_norm", .self_attention = "layer.0.SelfAttention.",
                      .cross_attention = "layer.1.EncDecAttention.", .self_attention_norm = "layer.0.layer_norm", .cross_attention_norm = "layer.1.layer_norm",
                      .encoder_feed_forward = "layer.1.DenseReluDense.", .decoder_feed_forward = "layer.2.DenseReluDense.", .encoder_feed_forward_norm = "layer.1.layer_norm",
                      .decoder_feed_forward_norm = "layer.2.layer_norm", .q = "q", .k = "k", .v = "v", .attention_output = "o", .relative_bias = "relative_attention_bias",
                      .hidden = "wi", .gate = "wi_0", .gated_hidden = "wi_1", .feed_forward_output = "wo", .output_bias = ""},
          .positions = SequencePositions::relative,
          .norm = nn::NormKind::rms_norm,
          .norm_position = nn::NormPosition::pre,
          .bias = false,
          .epsilon = 1e-6,
          .activation = activation,
          .gated_by_activation = true,
          .attention_scale = 1.0,
          .output_scale = scale,
          .own_output = true,
          .start_token = start_token};
}

// Keys of fairseq that older files contain; transformers does not read them.
constexpr std::string_view kOfFairseq[] = {"add_bias_logits", "add_final_layer_norm", "classif_dropout", "extra_pos_embeddings", "force_bos_token_to_be_generated", "max_length", "normalize_before",
                                           "normalize_embedding", "_num_labels", "output_past", "replacing_rate", "save_step", "static_position_embeddings", "activation_dropout", "classifier_dropout", "dropout",
                                           "encoder_layerdrop", "decoder_layerdrop", "init_std", "is_valid_bad_words_ids"};

// Most families are BART with other norms and positions.
constexpr SequenceFamily bart(std::string_view model_type) {
  return {.model_type = model_type, .keys = {.without_effect = kOfFairseq}, .forced_last = 2};
}

constexpr SequenceFamily bart_with_offset(std::string_view model_type) {
  SequenceFamily family = bart(model_type);
  family.tensors.embedding_norm = "layernorm_embedding";
  family.position_offset = 2;
  return family;
}

constexpr SequenceFamily of_bart() {
  SequenceFamily family = bart_with_offset("bart");
  family.start_token = 2;
  return family;
}

// mBART is BART with layers that normalise their inputs (pre-norm).
constexpr SequenceFamily of_mbart() {
  SequenceFamily family = bart_with_offset("mbart");
  family.tensors.final_norm = "layer_norm";
  family.norm_position = nn::NormPosition::pre;
  return family;
}

constexpr SequenceFamily of_marian() {
  SequenceFamily family = bart("marian");
  family.positions = SequencePositions::sinusoidal;
  family.may_split_embedding = true;
  family.start_token = 58100, family.forced_last = 0;
  return family;
}

constexpr SequenceFamily of_pegasus() {
  SequenceFamily family = bart("pegasus");
  family.tensors.final_norm = "layer_norm";
  family.positions = SequencePositions::sinusoidal;
  family.norm_position = nn::NormPosition::pre;
  family.start_token = 0, family.forced_last = 1;
  return family;
}

// Blenderbot is Pegasus with learned positions.
constexpr SequenceFamily of_blenderbot() {
  SequenceFamily family = of_pegasus();
  family.model_type = "blenderbot";
  family.positions = SequencePositions::learned;
  family.start_token = 1, family.forced_last = 2;
  return family;
}

// Keys of Whisper for training, for classifiers, and for the times at which words are spoken.
constexpr std::string_view kOfWhisper[] = {"activation_dropout", "apply_spec_augment", "classifier_proj_size", "decoder_layerdrop", "dropout", "encoder_layerdrop", "forced_decoder_ids", "init_std",
                                           "mask_feature_length", "mask_feature_min_masks", "mask_feature_prob", "mask_time_length", "mask_time_min_masks", "mask_time_prob",
                                           "median_filter_width", "scale_embedding", "use_weighted_layer_sum"};

constexpr SequenceFamily of_whisper() {
  SequenceFamily family{.model_type = "whisper", .keys = {.source_positions = "max_source_positions", .target_positions = "max_target_positions", .features = "num_mel_bins", .scale_embedding = "", .without_effect = kOfWhisper}};
  family.tensors.final_norm = "layer_norm";
  family.tensors.output = "proj_out", family.tensors.output_bias = "";
  family.tensors.convolution1 = "conv1", family.tensors.convolution2 = "conv2";
  family.norm_position = nn::NormPosition::pre;
  family.key_bias = false;
  family.start_token = 50257;
  return family;
}

// A new family is a row here and a case in tests/python/test_two_sided_models.py.
constexpr std::array kSequenceFamilies{
    t5("t5", "relu", OutputScale::by_key, std::nullopt),
    t5("mt5", "gated-gelu", OutputScale::none, 0),
    of_bart(),
    of_mbart(),
    of_marian(),
    of_pegasus(),
    of_blenderbot(),
    of_whisper(),
};

constexpr ModelFamily kRefusedSequences[] = {
    {"two sides", "umt5", "each of its layers has its own relative bias, whereas the layers of mt5 share one"},
    {"two sides", "longt5", "its encoder attends to blocks of the text and to their sums"},
    {"two sides", "switch_transformers", "its feed-forward parts are mixtures of experts"},
    {"two sides", "m2m_100", "its positions are numbered from the padding token's id + 1, unlike those of marian"},
    {"two sides", "prophetnet", "its decoder predicts several tokens at once"},
    {"two sides", "led", "its encoder has windows with global tokens"},
};

}  // namespace

std::span<const SequenceFamily> sequence_family_rows() { return kSequenceFamilies; }

std::span<const ModelFamily> refused_sequence_families() { return kRefusedSequences; }

std::string_view refused_sequence_family(std::string_view model_type) {
  const ModelFamily* refused = find_row(kRefusedSequences, model_type);
  return refused == nullptr ? std::string_view() : refused->refused;
}

const SequenceFamily& find_sequence_family(std::string_view file, std::string_view model_type) {
  if (const SequenceFamily* found = find_row(kSequenceFamilies, model_type)) return *found;
  const std::string known = join(kSequenceFamilies, &SequenceFamily::model_type);
  if (const std::string_view reason = refused_sequence_family(model_type); !reason.empty())
    fail(ErrorCode::unsupported, file, ": model_type is '", model_type, "', which is not supported: ", reason, "; known models with an encoder and a decoder are ", known);
  fail(ErrorCode::unsupported, file, ": model_type is '", model_type, "'; known models with an encoder and a decoder are ", known, "; the nearest is '",
       nearest_name(kSequenceFamilies, &SequenceFamily::model_type, model_type), "'");
}

std::vector<std::string_view> sequence_to_sequence_families() { return model_types(kSequenceFamilies); }

}  // namespace polyhead::models
