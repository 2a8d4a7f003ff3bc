// The outputs of an encoder of images for one image, and the part of a page that shows them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "polyhead/models/any_text_model.h"
#include "polyhead/models/image_processor.h"
#include "polyhead/models/image_text_model.h"
#include "polyhead/models/vision_encoder.h"
#include "polyhead/viewer.h"

namespace polyhead::app {

struct SeenImage {
  std::string name;              // the file's name, which the page shows
  Tensor fitted, pixels;         // fitted [height,width,3] uint8: the resized image; pixels [3,height,width] float32: the model's input
  Tensor attentions, hidden;     // attentions [L,N,T,T] and hidden [T,E]
  Tensor pooled, logits, embedding;  // an output that the model does not have is absent
  Tensor q, k, v;                // [L,N,T,H]; absent unless a budget was given to see_image()
  Tensor value_norms;            // [L,N,T]; absent unless see_image() was told to compute them
  std::int64_t left_out = 0;     // how many numbers of q, k and v did not fit into the page's budget; 0 if all did
};

// Runs the encoder on an image [height,width,3] uint8. `budget` limits how many numbers of q, k and v the page holds; with nullptr q, k and v are not computed.
// value_norms: whether the norms of the transformed value vectors are computed, for norm-weighted maps.
SeenImage see_image(const models::VisionEncoder& encoder, const models::ImageProcessor& processor, std::string name, ConstTensorView image, viewer::VectorBudget* budget, bool value_norms, const Workspace* workspace);

// Throws an Error that names the limit if a page has no room for so many images.
void require_page_of_images(const models::VisionConfig& config, std::int64_t images);

std::string label_of_class(const models::VisionConfig& config, std::int64_t index);
// The class numbers with the largest logits, largest logit first.
std::vector<std::int64_t> best_classes(const SeenImage& seen, std::size_t most);

// The pixels that the model's patches cover, [3,height,width] from 0 to 1.
Tensor shown_pixels(const models::VisionConfig& config, const SeenImage& seen);

// The set of maps of one image. It has views of `seen` and `shown`, which must outlive the page.
viewer::Text image_text(const models::VisionConfig& config, const SeenImage& seen, const Tensor& shown);
// The part of the address with which a page of images opens: the last layer, and the row of the class token.
std::string start_of_images(const models::VisionConfig& config);

// A text that a page shows beside its images, and the outputs of the model's text encoder for this text.
struct TextBeside {
  std::string text;
  models::TextRun run;
  std::int64_t left_out = 0;                      // the same as SeenImage::left_out
  std::optional<models::SimilarityScale> scale{};  // scale of the similarity of text and image; absent if no similarity is shown
};

// Error unless the folder holds a model with an image encoder and a text encoder, such as CLIP.
void require_both_sides(const std::string& model);
// `side` is the text encoder of the model in the folder `model`. `budget` and value_norms: as in see_image().
TextBeside see_text_beside(const std::string& model, const models::AnyTextModel& side, const std::string& text, models::TokenizedText tokens, viewer::VectorBudget* budget, bool value_norms);
// The similarity of text and image, which transformers calls logits_per_image; nullopt if similarities are not shown.
std::optional<double> similarity_to(const TextBeside& beside, const SeenImage& seen);
// Adds a tab with the text to the page's entry for an image, and appends the similarity of image and text to the image's name. The tab has views of `beside`.
void show_text_beside(const TextBeside& beside, const SeenImage& seen, viewer::Text& image);

}  // namespace polyhead::app
