#include "training/heads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/test_error_matcher.h"
#include "polyhead/io/tensor_file.h"
#include "training/digits.h"

namespace polyhead::training {
namespace {

TEST(Heads, ARunIsMeasuredOnceAndARunOfOtherStepsIsRefused) {
  const auto base = std::filesystem::path(testing::TempDir());
  const auto data = base / "heads.npz", folder = base / "heads_run";
  std::filesystem::remove_all(folder);
  Tensor images(DType::f32, {20, 4, 4}), labels(DType::i64, {20});
  for (std::int64_t i = 0; i < 20; ++i) labels.data<std::int64_t>()[i] = i % 2, images.data<float>()[i * 16 + i % 2] = 1;
  io::save_tensors(data, std::vector<io::NamedView>{{"images", images}, {"labels", labels}});

  std::vector<std::int64_t> parameters;
  for (const std::int64_t heads : {1, 8}) {
    const auto run = run_with_heads(digits_task, {.data = data, .seed = 1, .heads = heads}, 3, folder / std::to_string(heads));
    ASSERT_TRUE(run.has_value());
    parameters.push_back(run->parameters);
    EXPECT_THAT(run->validation, testing::HasSubstr("accuracy"));
    EXPECT_GT(run->milliseconds, 0);
    EXPECT_GT(run->megabytes, 1);
  }
  EXPECT_EQ(parameters[0], parameters[1]);

  EXPECT_FALSE(std::filesystem::exists(folder / "1/model.safetensors"));

  const TaskOptions options{.data = data, .seed = 1, .heads = 1};
  const auto written = std::filesystem::last_write_time(folder / "1/run.json");
  EXPECT_TRUE(run_with_heads(digits_task, options, 3, folder / "1").has_value());
  EXPECT_EQ(std::filesystem::last_write_time(folder / "1/run.json"), written) << "a finished model was trained again";
  EXPECT_ERROR(run_with_heads(digits_task, options, 4, folder / "1"), format, testing::HasSubstr("is of another run"));
  EXPECT_ERROR(run_with_heads(digits_task, {.data = data, .seed = 1, .heads = 5}, 3, folder / "5"), io, testing::HasSubstr("ended early"));
  const std::atomic<bool> stop = true;
  EXPECT_EQ(run_with_heads(digits_task, {.data = data, .seed = 1, .heads = 2}, 3, folder / "2", &stop), std::nullopt);
  EXPECT_TRUE(run_with_heads(digits_task, {.data = data, .seed = 1, .heads = 2}, 3, folder / "2").has_value()) << "the stopped run did not go on from its checkpoint";
}

}  // namespace
}  // namespace polyhead::training
