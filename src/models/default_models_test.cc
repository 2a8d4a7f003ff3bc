#include "polyhead/models/default_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <map>

#include "io/file_bytes.h"
#include "models/test_error_matcher.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/models/image_classifier.h"
#include "polyhead/models/sentence_chooser.h"

namespace polyhead::models {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST(DefaultModels, AreTheFoldersOfTheRepository) {
  const fs::path source = fs::path(POLYHEAD_SOURCE_DIR) / "models/default";
  std::vector<std::string> folders;
  for (const auto& entry : fs::directory_iterator(source))
    if (entry.is_directory()) folders.push_back(entry.path().filename().string());
  EXPECT_THAT(default_models(), testing::UnorderedElementsAreArray(folders));
  std::map<std::string, std::uintmax_t> bytes;
  for (const std::string& name : folders)
    for (const auto& entry : fs::directory_iterator(source / name)) {
      const std::string file = entry.path().filename().string();
      std::ifstream stream(entry.path(), std::ios::binary);
      const std::string expected{std::istreambuf_iterator<char>(stream), {}};
      EXPECT_TRUE(io::read_file(default_model(name) / file).text() == expected) << name << '/' << file;
      bytes[name] += expected.size();
    }
  EXPECT_LE(bytes["sentiment"] + bytes["grammar"], 1'500'000u);
  EXPECT_LE(bytes["digits"] + bytes["summary"], 500'000u);
  EXPECT_EQ(bytes.size(), 4u) << "a new model needs a bound";
}

// The images of the built-in file were not used for training the model.
TEST(DefaultModels, DigitsClassifiesImagesThatWereNotUsedForTraining) {
  const ImageClassifier model = load_image_classifier(default_model("digits"));
  const io::TensorFile examples = io::open_tensors(default_model("digits") / "examples.safetensors");
  const Tensor images = Tensor::copy_of(examples.at("images"), DType::f32);
  const std::int64_t count = images.extent(0);
  EXPECT_EQ(count, 186);
  std::int64_t right = 0;
  for (std::int64_t i = 0; i < count; ++i) right += classify(model, images.view().select(0, i)).best == examples.at("labels").data<std::int64_t>()[i];
  EXPECT_GE(static_cast<double>(right), 0.97 * static_cast<double>(count));
}

// Abstracts with two sentences of background, one that says what was done, and one with a result.
TEST(DefaultModels, SummaryChoosesTheSentenceThatSaysWhatWasDoneAndItsHeadsDiffer) {
  const SentenceChooser model = load_sentence_chooser(default_model("summary"));
  const std::vector<std::vector<std::string>> abstracts{
      {"Long rivers of text are hard to read for people who have little time.", "Earlier tools cut a text after its first lines, and so they miss what a report has found.",
       "We propose a reader that lets each sentence attend to all others and then keeps the one that says most.",
       "Experiments on three collections of reports show that our reader improves the agreement with human editors by four points."},
      {"Bees find flowers by smell and by colour.", "It is not known which of the two they trust more in strong wind.",
       "In this paper, we study bees in a wind tunnel with artificial flowers that change their colour and smell.",
       "The results show that bees trust colour as soon as the wind exceeds three metres per second."},
      {"Batteries of small sensors must be replaced by hand.", "Harvesting energy from heat is cheap, but the power it yields changes by the minute.",
       "Here we introduce a scheduler that learns when a sensor should sleep from the temperature alone.", "It outperforms fixed plans on all benchmarks and doubles the time between visits."}};
  const std::int64_t first_of[] = {0, 2, 3, 4};  // first sentence of background, of method and of result
  double divergence = 0;  // Jensen-Shannon divergence between heads, in bits: 0 for equal heads, 1 for heads that read different sentences
  for (const std::vector<std::string>& abstract : abstracts) {
    const ChosenSentence answer = choose(model, abstract);
    EXPECT_EQ(answer.best, 2) << abstract[0];
    ASSERT_EQ(answer.attentions.shape(), (Shape{1, 4, 4, 4}));
    const auto p = [&](std::int64_t head, std::int64_t t, std::int64_t s) { return static_cast<double>(answer.attentions.data<float>()[(head * 4 + t) * 4 + s]); };
    for (std::int64_t head = 0; head < model.config.taught_heads; ++head) {
      double read = 0;
      for (std::int64_t t = 0; t < 4; ++t)
        for (std::int64_t s = first_of[head]; s < first_of[head + 1]; ++s) read += p(head, t, s) / 4;
      EXPECT_GT(read, 0.7) << "head " << head << ": " << abstract[0];
    }
    const auto part = [](double x, double mean) { return x > 0 ? x * std::log2(x / mean) / 2 : 0; };
    for (std::int64_t a = 0; a < 4; ++a)
      for (std::int64_t b = 0; b < a; ++b)
        for (std::int64_t t = 0; t < 4; ++t)
          for (std::int64_t s = 0; s < 4; ++s) {
            const double x = p(a, t, s), y = p(b, t, s);
            divergence += (part(x, (x + y) / 2) + part(y, (x + y) / 2)) / static_cast<double>(6 * 4 * abstracts.size());
          }
  }
  EXPECT_GT(divergence, 0.5);
  EXPECT_EQ(model.config.taught_heads, 3);
}

TEST(DefaultModels, UnknownNamesAndFilesAreErrors) {
  EXPECT_ERROR(default_model("nothing"), invalid_argument, HasSubstr("there is no model 'nothing' in the library; it has "));
  EXPECT_ERROR(io::read_file("polyhead:nothing/config.json"), io, HasSubstr("No such file"));
  for (const std::string& name : default_models()) EXPECT_ERROR(io::read_file(default_model(name) / "nothing"), io, HasSubstr("No such file"));
}

}  // namespace
}  // namespace polyhead::models
