// Encoders of images (Vision Transformers, Dosovitskiy et al. 2021): ViT, DeiT, the image sides of CLIP and SigLIP, and timm's ViT, read from folders that the
// `transformers` package or timm wrote. src/models/vision_families.cc has a row for each family. polyhead evaluates these models and does not train them.
//
// An image is cut into patches, and a linear layer turns each patch into a token. Tokens that are no patches, such as the class token, come first; the patches
// follow, row by row from the top left.
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

// Names the vector that represents an image.
enum class VisionPooling : std::uint8_t {
  none,
  class_token,   // the first token
  patch_mean,    // the mean over the tokens of the patches
  all_mean,      // the mean over all tokens
  attention,     // the result of a learned query that attends to all tokens (SigLIP)
  dense,         // the first token after a linear layer with an activation (ViT's pooler)
};

// The sizes and settings of an image encoder. A comment that is a single name is the key in config.json.
struct VisionConfig {
  std::string family;                              // model_type; "timm" if timm wrote the folder
  std::int64_t channels = 3;                       // num_channels
  std::int64_t height = 224, width = 224;          // image_size, in pixels
  std::int64_t patch_height = 16, patch_width = 16;  // patch_size. Pixels to the right of the last whole patch, and below it, are not read.
  bool class_token = true, distillation_token = false;  // which of these two learned tokens stand before the patches
  // number of further learned tokens before the patches, after the class and distillation tokens (timm's reg_tokens)
  std::int64_t registers = 0;
  bool prefix_positions = true;                    // true: the tokens before the patches have positions too
  bool norm_of_pooled = false;                     // true: only the pooled vector is normalised by the final norm (CLIP); false: all tokens
  std::int64_t layers = 12;                        // L, num_hidden_layers
  nn::LayerConfig layer{.seed = 0};         // the settings of all layers: width, heads, hidden_width, biases, activation, epsilon, dtype
  VisionPooling pooling = VisionPooling::none;     // how `pooled` is computed; none: the file has no pooler, so there is no `pooled`
  // The vector that the classifier reads; if it equals `pooling`, the classifier reads `pooled`. none: the file has no classifier.
  VisionPooling classified = VisionPooling::none;
  nn::Activation pooler_activation = nn::Activation::tanh;  // pooler_act
  std::vector<std::string> labels{};                        // id2label: names of the classes; empty: the file has none

  std::int64_t prefix_tokens() const { return (class_token ? 1 : 0) + (distillation_token ? 1 : 0) + registers; }
  std::int64_t rows() const { return height / patch_height; }
  std::int64_t columns() const { return width / patch_width; }
  std::int64_t patches() const { return rows() * columns(); }
  std::int64_t tokens() const { return prefix_tokens() + patches(); }
};

// The pooling of SigLIP: a learned query, the probe, attends to all tokens. y = attention(probe, x), pooled = y + feed_forward(norm(y)).
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

// Results of an image encoder. Each output is optional and may have any floating dtype; requesting one does not change the others.
struct VisionOutput {
  TensorView hidden = {};      // [*,T,E]: the output of the last layer, after the final norm; without that norm in CLIP, which only applies it to `pooled`
  TensorView all_hidden = {};  // [L+1,*,T,E]: the input of the first layer, then each layer's output, before the final norm
  TensorView attentions = {};  // [L,*,N,T,T]: the attention weights of each layer
  TensorView q = {}, k = {}, v = {};  // [L,*,N,T,H]: the projected queries, keys and values of each layer's heads
  TensorView pooled = {};      // [*,pooled_width()]; Error if the file has no pooler
  TensorView logits = {};      // [*,classes()]; Error if the file has no classifier
  TensorView embedding = {};   // [*,embedding_width()]: `pooled` after `projection` (CLIP), or `pooled` itself (SigLIP). Error if the model has no embedding.
};

struct VisionOptions {
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;  // a Workspace with Parameters::constant also keeps packed parameters
};

struct VisionEncoder : nn::Module<VisionEncoder> {
  VisionConfig config;
  nn::Linear patches;      // projects the pixels of a patch, channel by channel and row by row, to E
  Tensor prefix;           // [prefix_tokens(),E]: the learned tokens before the patches; absent if the model has none
  Tensor positions;        // [T,E]; [G,E] if config.prefix_positions is false
  nn::Norm embedding_norm;
  nn::Encoder stack;       // all layers, and the final norm if it is applied to all tokens
  nn::Norm pooled_norm;    // the final norm if it is applied to the pooled vector only (config.norm_of_pooled)
  nn::Linear pooler;       // the linear layer of VisionPooling::dense
  ProbePooling pooling_head;
  nn::Linear projection;   // E -> P
  nn::Linear classifier;
  nn::Linear distillation_classifier;  // a second classifier, which reads token 1; logits are the mean of both classifiers (DeiT)

  // The widths of the outputs; 0 for an output that the file has no parameters for.
  std::int64_t pooled_width() const;
  std::int64_t embedding_width() const;
  std::int64_t classes() const { return classifier.weight ? classifier.out_width() : 0; }

  // Computes the outputs for pixels [*,C,height,width], floating, normalised as in the model's training. Error for an image of another size, because positions
  // are not interpolated.
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

// Returns the families that load_vision_encoder() knows: the values of model_type in config.json.
std::vector<std::string_view> vision_families();

enum class ImageModelKind : std::uint8_t { vision, text, both };
// Returns whether the model in a folder has an image encoder, a text encoder or both, as its config.json says. nullopt: the folder has no config.json, or the
// family is not known.
std::optional<ImageModelKind> image_model_kind(const std::filesystem::path& folder);

// Reads config.json of a folder. Error, with the name of the key, if a value is missing, of the wrong type, out of range or not supported, or if nothing reads
// the key.
VisionConfig read_vision_config(const std::filesystem::path& folder);

// Loads an image encoder from config.json and model.safetensors (one file or several with an index); a text encoder in the folder is ignored. The parameters
// are views of the mapped file, in its dtype. A tensor that is missing, does not fit the config, or has no place in the model is an Error.
VisionEncoder load_vision_encoder(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
