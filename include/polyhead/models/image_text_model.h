// Models that compare images with texts: CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023), read from folders that the `transformers` package wrote. An
// image encoder ("image side") and a text encoder ("text side") each compute an embedding. The scaled cosine of the two embeddings says how well image and text
// fit. polyhead evaluates these models and does not train them.
//
// Letters: * any number of leading (batch) dimensions, T tokens, E width, N heads, L layers, H width of a head, P width of an embedding, I images, J texts.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/models/vision_encoder.h"
#include "polyhead/nn/embedding.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// Names the token whose hidden state represents a text.
enum class TextPooling : std::uint8_t {
  end_token,   // the first token with the id config.end_token
  // The first token with the largest id of the text. This is for CLIP files with eos_token_id = 2: there the real end token has the largest id of the
  // vocabulary.
  largest_id,
  last,        // the last token, padding included (SigLIP)
};

// The sizes and settings of a text side. A comment that is a single name is the key in text_config of config.json.
struct TextSideConfig {
  std::string family;             // model_type
  std::int64_t vocabulary = 0;    // vocab_size
  std::int64_t positions = 0;     // max_position_embeddings: maximum number of tokens of a text
  std::int64_t layers = 0;        // L, num_hidden_layers
  nn::LayerConfig layer{.seed = 0};  // the settings of all layers: width, heads, hidden_width, activation, epsilon, dtype
  bool causal = true;             // true: tokens attend to themselves and to earlier tokens (CLIP); false: to all tokens (SigLIP)
  TextPooling pooling = TextPooling::end_token;
  std::int64_t end_token = 0;     // eos_token_id
};

struct TextSideInput {
  ConstTensorView ids;               // token ids: [*,T] int64 or int32, in [0, vocabulary)
  ConstTensorView attend_keys = {};  // [*,T] bool, false for padding; absent: no padding
};

// Results of a text side. Each output is optional and may have any floating dtype; requesting one does not change the others.
struct TextSideOutput {
  TensorView hidden = {};             // [*,T,E]: the hidden states after the final norm
  TensorView all_hidden = {};         // [L+1,*,T,E]: the embeddings, then each layer's output, before the final norm
  TensorView attentions = {};         // [L,*,N,T,T]
  TensorView q = {}, k = {}, v = {};  // [L,*,N,T,H]
  TensorView pooled = {};             // [*,E]: the hidden state of the token that TextPooling names; in SigLIP after the linear layer `head`
  // [*,P]: `pooled` after `projection` (CLIP), or `pooled` itself (SigLIP). Error if the file has neither `projection` nor `head`.
  TensorView embedding = {};
};

struct TextSide : nn::Module<TextSide> {
  TextSideConfig config;
  nn::Embedding words, positions;  // [vocabulary,E] [positions,E]
  nn::Encoder stack;               // all layers, and the final norm
  nn::Linear head;                 // a linear layer on the hidden state of the pooled token (SigLIP)
  nn::Linear projection;           // projects `pooled` from E to P (CLIP)

  std::int64_t pooled_width() const { return head.weight ? head.out_width() : config.layer.width; }
  std::int64_t embedding_width() const;  // Returns P; 0 if the model has no embedding.
  // Error if `pooled` or `embedding` is requested, and a text has no end token.
  void forward(const TextSideInput& input, const TextSideOutput& output, const VisionOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("config", self.config...);
    f("words", self.words...);
    f("positions", self.positions...);
    f("stack", self.stack...);
    f("head", self.head...);
    f("projection", self.projection...);
  }
};

struct SimilarityScale {
  double logit_scale = 0;  // logarithm of the factor of the cosine, as the file stores it
  double logit_bias = 0;   // a number that SigLIP adds to the scaled cosine
};

// Computes similarity [I,J] from embeddings images [I,P] and texts [J,P], all floating: similarity[i,j] = exp(logit_scale) cos(images[i], texts[j]) +
// logit_bias. In transformers this is logits_per_image. Probabilities are the softmax of a row (CLIP), or the sigmoid of an element (SigLIP).
void similarity(ConstTensorView images, ConstTensorView texts, const SimilarityScale& scale, TensorView similarity);

struct ImageTextModel {
  VisionEncoder vision;
  TextSide text;
  SimilarityScale scale;
};

// Loads the text encoder of a folder. The folder may also hold an image encoder.
TextSide load_text_side(const std::filesystem::path& folder);
// Loads the image encoder and the text encoder of a folder. Throws the Errors of load_vision_encoder().
ImageTextModel load_image_text_model(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
