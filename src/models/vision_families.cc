#include "models/vision_families.h"

#include <array>

#include "models/family_table.h"
#include "polyhead/models/vision_encoder.h"

namespace polyhead::models {
namespace {

constexpr std::string_view kVitIgnored[] = {"embeddings.mask_token", "decoder."};
constexpr std::string_view kVitKeys[] = {"attention_probs_dropout_prob", "encoder_stride", "tie_word_embeddings"};
constexpr std::string_view kPositionIds[] = {"embeddings.position_ids"};
constexpr std::string_view kClipKeys[] = {"attention_dropout", "dropout", "eos_token_id", "initializer_factor", "projection_dim", "tie_word_embeddings"};

// The names of tensors in files of CLIP and SigLIP.
constexpr VisionTensors kClipTensors{.prefix = "vision_model.",
                                     .patches = "embeddings.patch_embedding",
                                     .class_token = "embeddings.class_embedding",
                                     .positions = "embeddings.position_embedding.weight",
                                     .embedding_norm = "pre_layrnorm",
                                     .layer = "encoder.layers.",
                                     .final_norm = "post_layernorm",
                                     .pooled_norm = "post_layernorm",
                                     .attention_norm = "layer_norm1",
                                     .feed_forward_norm = "layer_norm2",
                                     .q = "self_attn.q_proj",
                                     .k = "self_attn.k_proj",
                                     .v = "self_attn.v_proj",
                                     .attention_output = "self_attn.out_proj",
                                     .hidden = "mlp.fc1",
                                     .feed_forward_output = "mlp.fc2",
                                     .projection = "visual_projection",
                                     .ignored = kPositionIds};

constexpr VisionTensors siglip_tensors() {
  VisionTensors names = kClipTensors;
  names.class_token = names.embedding_norm = names.projection = "";
  names.pooling_head = "head";
  return names;
}

// A new family is a row here and a row of FAMILIES in tests/python/test_image_models.py.
constexpr std::array kVisionFamilies{
    VisionFamily{.model_type = "vit", .tensors = {.prefix = "vit.", .pooler = "pooler.dense", .ignored = kVitIgnored}, .pooling = VisionPooling::dense, .qkv_bias_key = true, .without_effect = kVitKeys},
    VisionFamily{.model_type = "deit",
                 .tensors = {.prefix = "deit.", .distillation_token = "embeddings.distillation_token", .pooler = "pooler.dense", .taught_classifier = "cls_classifier", .distillation_classifier = "distillation_classifier", .ignored = kVitIgnored},
                 .pooling = VisionPooling::dense,
                 .qkv_bias_key = true,
                 .without_effect = kVitKeys},
    VisionFamily{.model_type = "clip_vision_model",
                 .tensors = kClipTensors,
                 .defaults = {.patch = 32, .activation = "quick_gelu", .epsilon = 1e-5},
                 .classified = VisionPooling::patch_mean,
                 .norm_of_pooled = true,
                 .patch_bias = false,
                 .without_effect = kClipKeys},
    VisionFamily{.model_type = "siglip_vision_model",
                 .tensors = siglip_tensors(),
                 .defaults = {.activation = "gelu_pytorch_tanh", .epsilon = 1e-6},
                 .pooling = VisionPooling::attention,
                 .classified = VisionPooling::all_mean,
                 .without_effect = kClipKeys},
};

// timm's VisionTransformer; timm_config.cc reads its config.json.
constexpr VisionFamily kTimm{.model_type = "timm",
                             .tensors = {.patches = "patch_embed.proj", .class_token = "cls_token", .distillation_token = "dist_token", .registers = "reg_token", .positions = "pos_embed", .layer = "blocks.",
                                         .final_norm = "norm", .pooled_norm = "fc_norm", .attention_norm = "norm1", .feed_forward_norm = "norm2", .q = "attn.qkv", .k = "", .v = "",
                                         .attention_output = "attn.proj", .hidden = "mlp.fc1", .feed_forward_output = "mlp.fc2", .classifier = "head", .taught_classifier = "head",
                                         .distillation_classifier = "head_dist"}};

constexpr std::string_view kSiglipTextKeys[] = {"attention_dropout", "eos_token_id", "projection_size", "tie_word_embeddings"};

constexpr std::array kTextSides{
    TextSideFamily{.model_type = "clip_text_model", .projection = "text_projection", .vocabulary = 49408, .positions_count = 77, .width = 512, .hidden_width = 2048, .heads = 8,
                   .activation = "quick_gelu", .epsilon = 1e-5, .without_effect = kClipKeys},
    TextSideFamily{.model_type = "siglip_text_model", .head = "head", .vocabulary = 32000, .positions_count = 64, .width = 768, .hidden_width = 3072, .heads = 12,
                   .activation = "gelu_pytorch_tanh", .epsilon = 1e-6, .causal = false, .pooling = TextPooling::last, .without_effect = kSiglipTextKeys},
};

constexpr std::array kPairs{
    ImageTextFamily{.model_type = "clip", .vision = "clip_vision_model", .text = "clip_text_model"},
    ImageTextFamily{.model_type = "siglip", .vision = "siglip_vision_model", .text = "siglip_text_model", .logit_bias = true},
};

}  // namespace

std::span<const VisionFamily> vision_family_rows() { return kVisionFamilies; }
const VisionFamily& timm_family() { return kTimm; }
std::span<const ImageTextFamily> image_text_family_rows() { return kPairs; }

std::span<const TextSideFamily> text_side_family_rows() { return kTextSides; }

const TextSideFamily* find_text_side_family(std::string_view model_type) { return find_row(kTextSides, model_type); }
const ImageTextFamily* find_image_text_family(std::string_view model_type) { return find_row(kPairs, model_type); }
const VisionFamily* find_vision_family(std::string_view model_type) { return find_row(kVisionFamilies, model_type); }

std::vector<std::string_view> vision_families() { return model_types(kVisionFamilies, kPairs); }

}  // namespace polyhead::models
