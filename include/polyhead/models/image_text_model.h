// Models that compare images with texts: CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023), read from a folder as the `transformers` package writes it.
// An image encoder ("image side") and a text encoder ("text side") each compute an embedding; the scaled cosine of both says how well image and text fit.
// Evaluation only.
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

// The token whose hidden state represents a text.
enum class TextPooling : std::uint8_t {
  end_token,   // the first token with the id config.end_token
  largest_id,  // the first token with the largest id of the text; for CLIP's files with eos_token_id = 2, in whose vocabulary the real end token has the largest id
  last,        // the last token, padding included (SigLIP)
};

// The comments name the keys of text_config in config.json.
struct TextSideConfig {
  std::string family;             // model_type
  std::int64_t vocabulary = 0;    // vocab_size
  std::int64_t positions = 0;     // max_position_embeddings: maximum number of tokens of a text
  std::int64_t layers = 0;        // L, num_hidden_layers
  nn::LayerConfig layer{.seed = 0};  // settings of all layers: width, heads, hidden_width, activation, epsilon, dtype
  bool causal = true;             // true: tokens attend to themselves and earlier ones (CLIP); false: to all tokens (SigLIP)
  TextPooling pooling = TextPooling::end_token;
  std::int64_t end_token = 0;     // eos_token_id
};

struct TextSideInput {
  ConstTensorView ids;               // [*,T] int64 or int32, in [0, vocabulary)
  ConstTensorView attend_keys = {};  // [*,T] bool, false for padding; absent: all true
};

// Each output is optional, of any floating dtype, and does not change the others.
struct TextSideOutput {
  TensorView hidden = {};             // [*,T,E], after the final norm
  TensorView all_hidden = {};         // [L+1,*,T,E]: the embeddings, then each layer's output, before the final norm
  TensorView attentions = {};         // [L,*,N,T,T]
  TensorView q = {}, k = {}, v = {};  // [L,*,N,T,H]
  TensorView pooled = {};             // [*,E]: the hidden state of the token that TextPooling names; for SigLIP after the linear layer `head`
  TensorView embedding = {};          // [*,P]: `pooled` projected (CLIP), or `pooled` itself (SigLIP). Error if the file has no projection
};

struct TextSide : nn::Module<TextSide> {
  TextSideConfig config;
  nn::Embedding words, positions;  // [vocabulary,E] [positions,E]
  nn::Encoder stack;               // the layers, and the final norm
  nn::Linear head;                 // applied to the pooled token (SigLIP)
  nn::Linear projection;           // E -> P (CLIP)

  std::int64_t pooled_width() const { return head.weight ? head.out_width() : config.layer.width; }
  std::int64_t embedding_width() const;  // 0 if there is no embedding
  // Error if `pooled` or `embedding` is requested for a text without an end token.
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
  double logit_scale = 0;  // the logarithm of the factor, as stored in the file
  double logit_bias = 0;   // the bias of SigLIP
};

// similarity[i,j] = exp(logit_scale) cos(images[i], texts[j]) + logit_bias, of embeddings [I,P] and [J,P] -> [I,J], all floating: transformers'
// logits_per_image. The softmax of a row (CLIP) or the sigmoid of an element (SigLIP) is a probability.
void similarity(ConstTensorView images, ConstTensorView texts, const SimilarityScale& scale, TensorView similarity);

struct ImageTextModel {
  VisionEncoder vision;
  TextSide text;
  SimilarityScale scale;
};

// Loads the text encoder of a folder, which may hold a text encoder alone, or an image encoder and a text encoder.
TextSide load_text_side(const std::filesystem::path& folder);
// Throws the Errors that load_vision_encoder() throws.
ImageTextModel load_image_text_model(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
