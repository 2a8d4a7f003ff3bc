#include "training/digits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "models/test_error_matcher.h"
#include "polyhead/executor.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/nn/seed.h"
#include "training/run.h"

namespace polyhead::training {
namespace {

using testing::HasSubstr;

// Noisy images in four classes: the class says which quarter of the image is bright.
std::filesystem::path quarters(std::int64_t count) {
  Tensor images(DType::f32, {count, 8, 8}), labels(DType::i64, {count});
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t draw = nn::derive_seed(1, static_cast<std::uint64_t>(i));
    const auto label = static_cast<std::int64_t>(draw % 4);
    labels.data<std::int64_t>()[i] = label;
    for (std::int64_t k = 0; k < 64; ++k)
      images.data<float>()[i * 64 + k] = (k / 32 * 2 + k % 8 / 4 == label ? 12.F : 0.F) + static_cast<float>(nn::derive_seed(draw, static_cast<std::uint64_t>(k)) % 11);
  }
  const auto path = std::filesystem::path(testing::TempDir()) / "quarters.npz";
  io::save_tensors(path, std::vector<io::NamedView>{{"images", images}, {"labels", labels}});
  return path;
}

TEST(Digits, LearnsWhichQuarterIsBright) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "digits_model";
  const auto folder_of_one = std::filesystem::path(testing::TempDir()) / "digits_model_of_one_thread";
  for (const auto& path : {folder, folder_of_one}) std::filesystem::remove_all(path);
  const auto data = quarters(200);
  std::vector<double> first, second;
  const auto train = [&](int threads, const std::filesystem::path& to, std::int64_t stop_at) {
    set_num_threads(threads);
    const std::unique_ptr<Task> task = digits_task({.data = data, .seed = 7});
    Plan plan = task->plan();
    plan.steps = 60, plan.validate_every = 30;
    std::atomic<bool> stop = false;
    return run(*task, plan, {.folder = to, .stop = &stop, .on_step = [&](const Progress& p) { stop = p.step == stop_at; },
                             .on_validation = [&](const Progress& p, const Validation&, bool) { (threads == 1 ? second : first).push_back(p.loss); }});
  };
  const RunResult result = train(2, folder, 0);
  EXPECT_GE(result.best->score, 0.95) << result.best->text;
  train(1, folder_of_one, 30);  // only the first of the two reported losses is needed to compare one thread with two
  EXPECT_NEAR(first[0], 1.1982, 1e-3);  // this loss and the next are those of an earlier run
  EXPECT_NEAR(first[1], 0.4448, 1e-3);
  EXPECT_EQ(second, std::vector<double>{first[0]}) << "one thread and two threads differ";
  const models::ImageClassifier model = models::load_image_classifier(folder);
  const Images images = read_images(data);
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < 200; ++i) all.push_back(i);
  EXPECT_GE(count_right(model, images, all), 190);
}

TEST(Digits, FilesThatDoNotFitAreRefused) {
  const auto path = std::filesystem::path(testing::TempDir()) / "odd.npz";
  const auto refused = [&](const Tensor& images, const Tensor& labels, const char* message) {
    io::save_tensors(path, std::vector<io::NamedView>{{"images", images}, {"labels", labels}});
    EXPECT_ERROR(digits_task({.data = path}), invalid_argument, HasSubstr(message));
  };
  const Tensor labels(DType::i64, {6});
  refused(Tensor(DType::f32, {6, 8, 8}), Tensor(DType::i64, {5}), "images [6,8,8] and labels [5] do not fit");
  refused(Tensor(DType::f32, {6, 7, 8}), labels, "patches of 2 x 2 do not divide images of 7 x 8");
  refused(Tensor(DType::f32, {0, 8, 8}), Tensor(DType::i64, {0}), "has no images");
  refused(Tensor(DType::i64, {6, 8, 8}), labels, "images are int64");
  refused(Tensor::of<float>({1, 1, 1}, {-1.F}), Tensor(DType::i64, {1}), "a pixel is -1");
  refused(Tensor(DType::f32, {2, 8, 8}), Tensor(DType::i64, {2}), "need at least 5");
}

}  // namespace
}  // namespace polyhead::training
