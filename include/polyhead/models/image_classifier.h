// A Vision Transformer for small grey images (Dosovitskiy et al. 2021, section 3.1). The patches of the image become tokens, and a class token attends to them.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "polyhead/nn/embedding.h"
#include "polyhead/nn/encoder_layer.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

struct ImageClassifierConfig {
  static constexpr std::string_view kModelType = "polyhead-image-classifier";  // the value of model_type in config.json
  std::int64_t height = 8, width = 8;  // the size of an image, in pixels
  std::int64_t patch = 2;              // the side of a square patch, in pixels; it divides height and width
  double white = 1;                    // the pixel value of white: classify() divides pixels by it
  std::int64_t classes = 10;
  std::int64_t model_width = 64;  // E
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  double dropout = 0;
  DType dtype = DType::f32;             // dtype of the parameters. Model files store neither the dtype nor the seed.
  nn::Seed seed;  // the initial parameters are drawn with this seed

  std::int64_t patches() const { return (height / patch) * (width / patch); }

  template <class F, class Self>
  static void visit_fields(const F& f, Self& self) {
    f("height", self.height), f("width", self.width), f("patch", self.patch), f("white", self.white), f("classes", self.classes);
    f("model_width", self.model_width), f("layers", self.layers), f("heads", self.heads), f("dropout", self.dropout);
  }
};

// The classifier computes logits = output(encoder(x)[0]). Token 0 is the class token; token 1 + i is patch i, in row-major order. Layers are pre-norm.
struct ImageClassifier : nn::Module<ImageClassifier> {
  ImageClassifierConfig config{.seed = 0};
  nn::Linear patch;         // projects the pixels of a patch, in row-major order, to E
  nn::Embedding positions;  // [1 + patches,E]; row 0 is the class token with its position
  nn::Encoder encoder;
  nn::Linear output;  // E -> classes

  // What backward() and maps need from a forward pass. The next forward pass with the same shapes reuses its memory.
  struct Saved {
    Tensor pixels;        // [B,patches,patch*patch]
    Tensor x, y, d_x, d_y;  // [B,1 + patches,E]
    nn::Encoder::Saved encoder;
  };

  ImageClassifier() = default;
  explicit ImageClassifier(const ImageClassifierConfig& config);

  // images is [B,height,width] with pixels from 0 to 1, logits is [B,classes]; both have the parameters' dtype.
  void forward(ConstTensorView images, TensorView logits, Saved& saved, const nn::AttentionOptions& options = {}) const;
  // Computes the gradients of all parameters from d_logits, the gradient of the logits.
  void backward(Saved& saved, ConstTensorView d_logits, ImageClassifier& gradients, const nn::RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("config", self.config...), f("patch", self.patch...), f("positions", self.positions...), f("encoder", self.encoder...), f("output", self.output...);
  }
};

struct ClassifiedImage {
  std::vector<double> probabilities;  // the probability of each class
  std::int64_t best = 0;
  Tensor attentions;  // [L,N,1 + patches,1 + patches]: the attention weights of each layer
};

// Classifies one image [height,width], floating, with pixels from 0 to config.white.
ClassifiedImage classify(const ImageClassifier& model, ConstTensorView image);

void save_image_classifier(const ImageClassifier& model, const std::filesystem::path& folder);
ImageClassifier load_image_classifier(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
