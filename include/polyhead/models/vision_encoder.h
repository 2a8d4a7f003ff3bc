// Encoders of images (Vision Transformers, Dosovitskiy et al. 2021): ViT, DeiT, the image sides of CLIP and SigLIP, and timm's ViT, read from a folder as the
// `transformers` package or timm writes it. src/models/vision_families.cc has a row for each family. Evaluation only.
//
// An image is cut into patches; each becomes a token by one linear layer. Tokens before the patches, such as the class token, come first. The patches follow
// row by row from the top left.
// Letters: * any number of leading (batch) dimensions, C channels, G patches, T tokens (those before the patches, then G), E width, N heads, L layers, H width
// of a head, P width of the projected embedding.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/nn/encoder_layer.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// The vector that represents the image.
enum class VisionPooling : std::uint8_t {
  none,
  class_token,   // the first token
  patch_mean,    // the mean of the patches
  all_mean,      // the mean of all tokens
  attention,     // a learned query attends to all tokens (SigLIP)
  dense,         // a linear layer with an activation, applied to the first token (ViT's pooler)
};

// The comments name the keys of config.json.
struct VisionConfig {
  std::string family;                              // model_type; "timm" if timm wrote the folder
  std::int64_t channels = 3;                       // num_channels
  std::int64_t height = 224, width = 224;          // image_size, in pixels
  std::int64_t patch_height = 16, patch_width = 16;  // patch_size; pixels to the right of and below the last whole patch are not read
  bool class_token = true, distillation_token = false;  // tokens before the patches
  std::int64_t registers = 0;                      // number of further learned tokens, after the class and distillation tokens (timm's reg_tokens)
  bool prefix_positions = true;                    // whether the tokens before the patches have positions
  bool norm_of_pooled = false;                     // the final norm is applied to the pooled vector only (CLIP)
  std::int64_t layers = 12;                        // L, num_hidden_layers
  nn::LayerConfig layer{.seed = 0};         // settings of all layers: width, heads, hidden_width, biases, activation, epsilon, dtype
  VisionPooling pooling = VisionPooling::none;     // how `pooled` is computed; none: the file has no pooler
  VisionPooling classified = VisionPooling::none;  // the vector that the classifier reads (`pooled` itself if it equals `pooling`); none: the file has no classifier
  nn::Activation pooler_activation = nn::Activation::tanh;  // pooler_act
  std::vector<std::string> labels{};                        // id2label: names of the classes; empty: the file has none

  std::int64_t prefix_tokens() const { return (class_token ? 1 : 0) + (distillation_token ? 1 : 0) + registers; }
  std::int64_t rows() const { return height / patch_height; }
  std::int64_t columns() const { return width / patch_width; }
  std::int64_t patches() const { return rows() * columns(); }
  std::int64_t tokens() const { return prefix_tokens() + patches(); }
};

// SigLIP's pooling: y = attention(probe, x), pooled = y + feed_forward(norm(y)).
struct ProbePooling : nn::Module<ProbePooling> {
  Tensor probe;  // [1,E]
  nn::MultiHeadAttention attention;
  nn::Norm norm;
  nn::FeedForward feed_forward;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("probe", self.probe...), f("attention", self.attention...), f("norm", self.norm...), f("feed_forward", self.feed_forward...);
  }
};

// Each output is optional, of any floating dtype, and does not change the others.
struct VisionOutput {
  TensorView hidden = {};      // [*,T,E]: output of the last layer, after the final norm if that is applied to all tokens (not in CLIP)
  TensorView all_hidden = {};  // [L+1,*,T,E]: the input of the first layer, then each layer's output, before the final norm
  TensorView attentions = {};  // [L,*,N,T,T]: the attention weights of each layer
  TensorView q = {}, k = {}, v = {};  // [L,*,N,T,H]: projected
  TensorView pooled = {};      // [*,pooled_width()]. Error where the file has no pooler
  TensorView logits = {};      // [*,classes()]. Error where the file has no classifier
  TensorView embedding = {};   // [*,embedding_width()]: `pooled` projected (CLIP), or `pooled` itself (SigLIP). Error if the file has no projection
};

struct VisionOptions {
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;  // a workspace of Parameters::constant also keeps packed parameters
};

struct VisionEncoder : nn::Module<VisionEncoder> {
  VisionConfig config;
  nn::Linear patches;      // pixels of a patch, channel by channel and row by row, -> E
  Tensor prefix;           // [prefix_tokens(),E]; absent if there are none
  Tensor positions;        // [T,E], or [G,E] without prefix_positions
  nn::Norm embedding_norm;
  nn::Encoder stack;       // the layers, and the final norm if it is applied to all tokens
  nn::Norm pooled_norm;    // norm of the pooled vector, with norm_of_pooled
  nn::Linear pooler;       // linear layer of VisionPooling::dense
  ProbePooling pooling_head;
  nn::Linear projection;   // E -> P
  nn::Linear classifier;
  nn::Linear distillation_classifier;  // reads token 1; logits are the mean of both classifiers (DeiT)

  // Extents of the results; 0 if the file has no such part.
  std::int64_t pooled_width() const;
  std::int64_t embedding_width() const;
  std::int64_t classes() const { return classifier.weight ? classifier.out_width() : 0; }

  // pixels [*,C,height,width] floating, normalised as in the model's training. Images of another size are an Error: positions are not interpolated.
  void forward(ConstTensorView pixels, const VisionOutput& output, const VisionOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("config", self.config...);
    f("patches", self.patches...);
    f("prefix", self.prefix...);
    f("positions", self.positions...);
    f("embedding_norm", self.embedding_norm...);
    f("stack", self.stack...);
    f("pooled_norm", self.pooled_norm...);
    f("pooler", self.pooler...);
    f("pooling_head", self.pooling_head...);
    f("projection", self.projection...);
    f("classifier", self.classifier...);
    f("distillation_classifier", self.distillation_classifier...);
  }
};

// Returns the known families, by their model_type in config.json.
std::vector<std::string_view> vision_families();

enum class ImageModelKind : std::uint8_t { vision, text, both };
// Returns whether the model in a folder has an image encoder, a text encoder or both, as its config.json says; nullopt if there is no config.json or its family
// is not known.
std::optional<ImageModelKind> image_model_kind(const std::filesystem::path& folder);

// Reads config.json of a folder. A value that is missing, of the wrong type, out of range or not supported, and a key that nothing reads, is an Error
// that names the key.
VisionConfig read_vision_config(const std::filesystem::path& folder);

// Loads config.json and model.safetensors (or its shards); of a folder with an image encoder and a text encoder, the image encoder. The parameters are views of
// the mapped file, in its dtype. A tensor that is missing, does not fit the config, or has no place in the model is an Error.
VisionEncoder load_vision_encoder(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
