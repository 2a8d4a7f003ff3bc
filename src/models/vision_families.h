// The families of image encoders as data: how each names its keys in config.json and its tensors, and which parts it has.
#pragma once

#include <span>
#include <string_view>

#include "polyhead/models/image_text_model.h"

namespace polyhead::models {

// Names of tensors. The ending ".weight" or ".bias" is left out; names of token and position tensors are complete. The full name of a layer's tensor is `layer`,
// the layer's number, a dot and the name here. An empty name: the family has no such tensor.
struct VisionTensors {
  std::string_view prefix = "";  // precedes all names except those of classifiers and projections; a file of a model that has neither a classifier nor a projection has no prefix
  std::string_view patches = "embeddings.patch_embeddings.projection", class_token = "embeddings.cls_token", distillation_token = "", registers = "", positions = "embeddings.position_embeddings",
                   embedding_norm = "", layer = "encoder.layer.", final_norm = "layernorm", pooled_norm = "";
  std::string_view attention_norm = "layernorm_before", feed_forward_norm = "layernorm_after";
  std::string_view q = "attention.attention.query", k = "attention.attention.key", v = "attention.attention.value";  // if k and v are empty, q holds q, k and v
  std::string_view attention_output = "attention.output.dense", hidden = "intermediate.dense", feed_forward_output = "output.dense";
  std::string_view pooler = "", pooling_head = "";                                             // names that follow the prefix
  // Names without the prefix. A model with a distillation_classifier has taught_classifier instead of classifier.
  std::string_view projection = "", classifier = "classifier", taught_classifier = "", distillation_classifier = "";
  // Beginnings of names, with or without the prefix before them. Tensors with these names are not read: they are for training, or are buffers.
  std::span<const std::string_view> ignored{};
};

// Values of missing keys of config.json.
struct VisionDefaults {
  std::int64_t width = 768, layers = 12, heads = 12, hidden_width = 3072, image = 224, patch = 16;
  std::string_view activation = "gelu";
  double epsilon = 1e-12;
};

struct VisionFamily {
  std::string_view model_type;
  VisionTensors tensors{};
  VisionDefaults defaults{};
  VisionPooling pooling = VisionPooling::class_token;
  VisionPooling classified = VisionPooling::class_token;  // the vector that the classifier reads
  bool norm_of_pooled = false;                            // true: only the pooled vector is normalised, by pooled_norm; there is no final_norm
  bool patch_bias = true;
  bool qkv_bias_key = false;                              // reads "qkv_bias"
  std::span<const std::string_view> without_effect{};     // keys of config.json that change no result
};

// The text encoder of a model of images and texts. Tensors of its layers have the same names as those of the image encoder.
struct TextSideFamily {
  std::string_view model_type;
  std::string_view prefix = "text_model.", words = "embeddings.token_embedding", positions = "embeddings.position_embedding", final_norm = "final_layer_norm", head = "", projection = "";
  // this member and the next two: values of keys that config.json lacks
  std::int64_t vocabulary = 0, positions_count = 0, width = 0, hidden_width = 0, heads = 0;
  std::string_view activation = "";
  double epsilon = 0;
  bool causal = true;
  TextPooling pooling = TextPooling::end_token;  // with `last`, eos_token_id is not read
  std::span<const std::string_view> without_effect{};
};
std::span<const TextSideFamily> text_side_family_rows();
const TextSideFamily* find_text_side_family(std::string_view model_type);

// A model with an image encoder and a text encoder.
struct ImageTextFamily {
  std::string_view model_type, vision, text;  // model_type of the whole model, of the image encoder and of the text encoder
  bool logit_bias = false;
};

std::span<const ImageTextFamily> image_text_family_rows();
const ImageTextFamily* find_image_text_family(std::string_view model_type);

std::span<const VisionFamily> vision_family_rows();
const VisionFamily& timm_family();
// Returns the row of the table for a family; nullptr if the family is not known.
const VisionFamily* find_vision_family(std::string_view model_type);

}  // namespace polyhead::models
