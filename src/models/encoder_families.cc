#include "models/encoder_families.h"

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "core/join.h"
#include "core/text.h"
#include "models/family_table.h"
#include "models/sequence_families.h"
#include "polyhead/models/language_model.h"
#include "polyhead/models/vision_encoder.h"

namespace polyhead::models {
namespace {

constexpr EncoderFamily roberta(std::string_view model_type) { return {.model_type = model_type, .positions = EncoderPositions::after_padding, .padding_token = 1}; }

// A new family is a row here and a row of FAMILIES in tests/python/test_encoders.py.
constexpr std::array kFamilies{
    EncoderFamily{.model_type = "bert"},
    roberta("roberta"),
    roberta("xlm-roberta"),
    roberta("camembert"),
    EncoderFamily{.model_type = "distilbert",
                  .keys = {.width = "dim", .layers = "n_layers", .heads = "n_heads", .hidden_width = "hidden_dim", .segments = "", .activation = "activation", .epsilon = ""},
                  .tensors = {.segments = "", .layer = "transformer.layer.", .q = "attention.q_lin", .k = "attention.k_lin", .v = "attention.v_lin", .attention_output = "attention.out_lin",
                              .attention_norm = "sa_layer_norm", .hidden = "ffn.lin1", .feed_forward_output = "ffn.lin2", .feed_forward_norm = "output_layer_norm"},
                  .aliases = {.width = "hidden_size", .layers = "num_hidden_layers", .heads = "num_attention_heads"}},
    EncoderFamily{.model_type = "electra", .keys = {.embedding_width = "embedding_size"}, .tensors = {.embedding_projection = "embeddings_project"}, .embedding_width = 128},
    EncoderFamily{.model_type = "albert",
                  .keys = {.embedding_width = "embedding_size"},
                  .tensors = {.embedding_projection = "encoder.embedding_hidden_mapping_in", .layer = "encoder.albert_layer_groups.", .q = "attention.query", .k = "attention.key",
                              .v = "attention.value", .attention_output = "attention.dense", .attention_norm = "attention.LayerNorm", .hidden = "ffn",
                              .feed_forward_output = "ffn_output", .feed_forward_norm = "full_layer_layer_norm"},
                  .activation = "gelu_new",
                  .embedding_width = 128,
                  .grouped_layers = true},
    EncoderFamily{.model_type = "mpnet",
                  .keys = {.segments = ""},
                  .tensors = {.segments = "", .relative_bias = "encoder.relative_attention_bias", .q = "attention.attn.q", .k = "attention.attn.k", .v = "attention.attn.v",
                              .attention_output = "attention.attn.o", .attention_norm = "attention.LayerNorm"},
                  .positions = EncoderPositions::after_padding,
                  .padding_token = 1,
                  .fixed_padding_token = true},
    EncoderFamily{.model_type = "esm",
                  .keys = {.segments = "", .activation = ""},
                  .tensors = {.segments = "", .embedding_norm = "embeddings.layer_norm", .final_norm = "encoder.emb_layer_norm_after", .attention_norm = "attention.LayerNorm",
                              .feed_forward_norm = "LayerNorm"},
                  .positions = EncoderPositions::by_type,
                  .norm_position = nn::NormPosition::pre,
                  .token_dropout = true},
    EncoderFamily{.model_type = "modernbert",
                  .keys = {.segments = "", .activation = "hidden_activation", .epsilon = "norm_eps"},
                  .tensors = {.words = "embeddings.tok_embeddings", .segments = "", .embedding_norm = "embeddings.norm", .layer = "layers.", .final_norm = "final_norm", .q = "attn.Wqkv",
                              .k = "", .v = "", .attention_output = "attn.Wo", .attention_norm = "attn_norm", .hidden = "mlp.Wi", .feed_forward_output = "mlp.Wo",
                              .feed_forward_norm = "mlp_norm"},
                  .positions = EncoderPositions::rotary,
                  .norm_position = nn::NormPosition::pre,
                  .epsilon = 1e-5,
                  .modernbert = true},
};

constexpr ModelFamily kRefused[] = {
    {"encoder", "deberta", "its scores also contain products of contents and relative positions"},
    {"encoder", "deberta-v2", "its scores also contain products of contents and relative positions"},
    {"encoder", "longformer", "its windows have global tokens with separate projections"},
    {"encoder", "big_bird", "its layers attend to random blocks of keys"},
    {"encoder", "funnel", "its layers shorten the text"},
    {"encoder", "convbert", "its layers have convolutions"},
    {"encoder", "xlm-roberta-xl", "its layers normalise their inputs (pre-norm), unlike those of xlm-roberta"},
    {"encoder", "roberta-prelayernorm", "its layers normalise their inputs (pre-norm), unlike those of roberta"},
};

}  // namespace

std::span<const EncoderFamily> encoder_family_rows() { return kFamilies; }

std::span<const ModelFamily> refused_encoder_families() { return kRefused; }

const EncoderFamily& find_encoder_family(std::string_view file, std::string_view model_type) {
  if (const EncoderFamily* found = find_row(kFamilies, model_type)) return *found;
  const ModelFamily* refused = find_row(kRefused, model_type);
  const std::string known = join(kFamilies, &EncoderFamily::model_type);
  if (refused != nullptr) fail(ErrorCode::unsupported, file, ": model_type is '", model_type, "', which is not supported: ", refused->refused, "; known encoders are ", known);
  if (!refused_sequence_family(model_type).empty()) find_sequence_family(file, model_type);  // throws an Error with the reason
  std::vector<std::string_view> names = language_families();
  const std::vector<std::string_view> two_sides = sequence_to_sequence_families();
  const auto is_in = [&](const std::vector<std::string_view>& list) { return std::ranges::find(list, model_type) != list.end(); };
  if (is_in(names)) fail(ErrorCode::unsupported, file, ": model_type is '", model_type, "', a decoder; known encoders are ", known);
  if (is_in(two_sides)) fail(ErrorCode::unsupported, file, ": model_type is '", model_type, "', a model with an encoder and a decoder; known encoders are ", known);
  const std::string decoders = join(names);
  names.insert(names.end(), two_sides.begin(), two_sides.end());
  for (const EncoderFamily& family : kFamilies) names.push_back(family.model_type);
  const std::vector<std::string_view> of_images = vision_families();
  names.insert(names.end(), of_images.begin(), of_images.end());
  fail(ErrorCode::unsupported, file, ": model_type is '", model_type, "'; known encoders are ", known, "; known decoders are ", decoders, "; known models with an encoder and a decoder are ", join(two_sides), "; known models of images are ", join(of_images),
       "; the nearest is '",
       nearest_name(names, std::identity(), model_type), "'");
}

}  // namespace polyhead::models
