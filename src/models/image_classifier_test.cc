#include "polyhead/models/image_classifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "models/test_error_matcher.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::models {
namespace {

using test::Random;
using testing::HasSubstr;

ImageClassifierConfig tiny_image_classifier(DType dtype) {
  return {.height = 4, .width = 6, .patch = 2, .white = 16, .classes = 3, .model_width = 4, .layers = 2, .heads = 2, .dtype = dtype, .seed = 3};
}

TEST(ImageClassifier, GradientsAgreeWithCentralDifferences) {
  Random random(5);
  ImageClassifier model(tiny_image_classifier(DType::f64)), gradients = nn::zeros_like(model);
  const Tensor images = random.tensor(DType::f64, {2, 4, 6}), d_logits = random.tensor(DType::f64, {2, 3});
  Tensor logits(DType::f64, {2, 3});
  ImageClassifier::Saved saved;
  model.forward(images, logits, saved);
  model.backward(saved, d_logits, gradients);
  test::expect_gradients(
      [&] {
        model.forward(images, logits, saved);
        return test::weighted_sum(logits, d_logits);
      },
      test::parameter_leaves(model, gradients));
}

// A pixel belongs to one patch. If one pixel of patch 4 (second row, second column) changes, only the embedding of that patch changes.
TEST(ImageClassifier, PatchesAreInRowMajorOrder) {
  const ImageClassifier model(tiny_image_classifier(DType::f64));
  Tensor image(DType::f64, {1, 4, 6}), logits(DType::f64, {1, 3});
  image.data<double>()[2 * 6 + 3] = 0.5;
  ImageClassifier::Saved saved;
  model.forward(image, logits, saved);
  for (std::int64_t patch = 0; patch < 6; ++patch)
    for (std::int64_t pixel = 0; pixel < 4; ++pixel) EXPECT_EQ(saved.pixels.data<double>()[patch * 4 + pixel], patch == 4 && pixel == 1 ? 0.5 : 0) << patch;
}

TEST(ImageClassifier, AFolderGivesTheSameAnswers) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "image_classifier";
  const ImageClassifier model(tiny_image_classifier(DType::f32));
  Random random(6);
  Tensor image = random.tensor(DType::f32, {4, 6});
  for (int i = 0; i < 24; ++i) image.data<float>()[i] = std::abs(image.data<float>()[i]);
  save_image_classifier(model, folder);
  const ClassifiedImage a = classify(model, image), b = classify(load_image_classifier(folder), image);
  EXPECT_EQ(a.probabilities, b.probabilities);
  EXPECT_EQ(a.attentions.shape(), (Shape{2, 2, 7, 7}));
  EXPECT_NEAR(a.probabilities[0] + a.probabilities[1] + a.probabilities[2], 1, 1e-12);
  image.data<float>()[0] = 17;
  EXPECT_ERROR(classify(model, image), invalid_argument, HasSubstr("a pixel is 17; the model knows 0 to 16"));

  ImageClassifier odd(tiny_image_classifier(DType::f32));
  odd.output.bias.data<float>()[1] = std::nanf("");
  save_image_classifier(odd, folder);
  EXPECT_ERROR(load_image_classifier(folder), format, HasSubstr("output.bias has the value nan; it must be finite"));
  std::string config;
  std::getline(std::ifstream(folder / "config.json"), config, '\0');
  config.replace(config.find("\"layers\": 2"), 11, "\"layers\": 2000000000");
  std::ofstream(folder / "config.json") << config;
  EXPECT_ERROR(load_image_classifier(folder), format, HasSubstr("is 2000000000; model.safetensors has"));

  std::ofstream(folder / "config.json") << R"({"model_type": "bert"})";
  EXPECT_ERROR(load_image_classifier(folder), unsupported, HasSubstr("model_type is 'bert'"));
}

}  // namespace
}  // namespace polyhead::models
