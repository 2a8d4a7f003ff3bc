// Tests that the runner reports wrong results, unknown options and damaged files as failures.
#include "golden/runner/run.h"

#include <fstream>

#include "support/compare.h"

namespace polyhead::golden {
namespace {

namespace fs = std::filesystem;

// A temporary folder with a copy of one case of the golden vectors, changed by `edit`.
class Folder {
 public:
  Folder(const std::string& name, const std::function<void(io::TensorFile&)>& edit) {
    path_ = fs::path(testing::TempDir()) / cat("polyhead_golden_", testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(path_);
    fs::create_directories(path_);
    io::TensorFile file = io::open_tensors(fs::path(POLYHEAD_GOLDEN_VECTORS) / (name + ".safetensors"));
    edit(file);
    io::save_tensors(path_ / (name + ".safetensors"), file.tensors, file.metadata);
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

struct Outcome {
  RunResult result;
  std::string text;
};

Outcome run(const fs::path& folder, const RunOptions& options = {}) {
  Outcome outcome;
  outcome.result = run_folder(folder, options, [&](const std::string& line) { outcome.text += line + "\n"; });
  return outcome;
}

void change_option(io::TensorFile& file, const std::string& key, const nlohmann::json& value) {
  nlohmann::json options = nlohmann::json::parse(file.metadata.at("case"));
  options[key] = value;
  file.metadata["case"] = options.dump();
}

TEST(GoldenRunner, UnchangedCasePasses) {
  const Folder folder("sdpa_plain", [](io::TensorFile&) {});
  const Outcome outcome = run(folder.path(), {.dtypes = {DType::f64, DType::f32}});
  EXPECT_EQ(outcome.result.passed, 2) << outcome.text;
  EXPECT_EQ(outcome.result.failed, 0) << outcome.text;
}

TEST(GoldenRunner, OneWrongElementOfAnyResultFails) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"sdpa_bias_1x3x1x7", {"out", "weights", "lse", "d_q", "d_k", "d_v", "d_bias"}},
      {"second_derivatives_everything", {"out_tangent", "lse_tangent", "d_q", "d_k", "d_v", "d_bias", "d_sink", "d_d_out"}}};
  for (const auto& [of_case, names] : cases) {
    for (const char* name : names) {
      SCOPED_TRACE(name);
      const Folder folder(of_case, [&](io::TensorFile& file) {
        Tensor& tensor = *file.find(name);
        tensor.data<double>()[tensor.numel() - 1] += 2e-12 * test::largest_magnitude(tensor);
      });
      const Outcome outcome = run(folder.path());
      EXPECT_EQ(outcome.result.failed, 1) << outcome.text;
      EXPECT_NE(outcome.text.find(name), std::string::npos) << outcome.text;
    }
  }
}

TEST(GoldenRunner, WrongFloat32ResultFails) {
  for (const char* name : {"out", "weights", "lse", "d_q", "d_k", "d_v", "d_bias"}) {
    SCOPED_TRACE(name);
    const Folder folder("sdpa_bias_1x3x1x7", [&](io::TensorFile& file) {
      Tensor& tensor = *file.find(name);
      tensor.data<double>()[tensor.numel() - 1] += 1e-4 * test::largest_magnitude(tensor);
    });
    EXPECT_EQ(run(folder.path(), {.dtypes = {DType::f32}}).result.failed, 1);
  }
}

// If PyTorch's error is not recorded, the runner estimates it. In cases with a recorded error, the bound from the estimate must be at least as large as the bound from the
// recorded error, and small enough to find errors.
TEST(GoldenRunner, BoundFromRoundingCoversTwiceThePyTorchError) {
  for (const auto& [name, errors] : read_float32_errors(POLYHEAD_GOLDEN_ERRORS)) {
    SCOPED_TRACE(name);
    const Case which = read_case(fs::path(POLYHEAD_GOLDEN_VECTORS) / (name + ".safetensors"));
    const Bounds bounds = float32_bounds(which, {});
    for (const auto& [tensor, error] : errors) {
      SCOPED_TRACE(tensor);
      const std::vector<double>& bound = bounds.at(tensor);
      const double largest = *std::max_element(bound.begin(), bound.end());
      EXPECT_LE(2 * error, largest);
      if (magnitude(which, tensor) > 0) {
        EXPECT_LE(largest, 1e-4 * magnitude(which, tensor));
      }
    }
  }
}

TEST(GoldenRunner, UnknownRuleOperationAndTensorAreFailures) {
  const Folder rule("sdpa_plain", [](io::TensorFile& file) { change_option(file, "alibi", 1); });
  EXPECT_NE(run(rule.path()).text.find("'alibi'"), std::string::npos);
  const Folder operation("sdpa_plain", [](io::TensorFile& file) { change_option(file, "op", "conv"); });
  EXPECT_NE(run(operation.path()).text.find("'conv'"), std::string::npos);
  const Folder value("sdpa_causal_square", [](io::TensorFile& file) { change_option(file, "causal", "top_right"); });
  EXPECT_NE(run(value.path()).text.find("'top_right'"), std::string::npos);
  const Folder tensor("sdpa_plain", [](io::TensorFile& file) { file.tensors.push_back({"sinks", Tensor(DType::f64, {3})}); });
  const Outcome outcome = run(tensor.path());
  EXPECT_NE(outcome.text.find("'sinks'"), std::string::npos);
  EXPECT_EQ(outcome.result.failed, 1);
}

TEST(GoldenRunner, ExpectedTensorThatIsNotComputedIsAFailure) {
  const Folder folder("sdpa_plain", [](io::TensorFile& file) { file.tensors.push_back({"d_scale", Tensor(DType::f64, {1})}); });
  EXPECT_NE(run(folder.path()).text.find("'d_scale'"), std::string::npos);
}

TEST(GoldenRunner, TruncatedFileIsAFailure) {
  const Folder folder("sdpa_plain", [](io::TensorFile&) {});
  fs::resize_file(folder.path() / "sdpa_plain.safetensors", 3000);
  EXPECT_EQ(run(folder.path()).result.failed, 1);
}

TEST(GoldenRunner, MissingOrEmptyFolderIsAnError) {
  EXPECT_THROW(run("no/such/folder"), Error);
  const Folder folder("sdpa_plain", [](io::TensorFile&) {});
  fs::remove(folder.path() / "sdpa_plain.safetensors");
  EXPECT_THROW(run(folder.path()), Error);
}

}  // namespace
}  // namespace polyhead::golden
