#include <gtest/gtest.h>

#include "io/failing_new.h"
#include "io/formats.h"
#include "io/test_files.h"

namespace polyhead::io {
namespace {

std::vector<NamedTensor> two_tensors() {
  std::vector<NamedTensor> tensors;
  for (const char* name : {"layer.0.attention.output.dense.weight", "mask"}) tensors.push_back({name, random_tensor(DType::boolean, {2, 3})});
  return tensors;
}

TEST(OutOfMemory, RunningOutOfMemoryWhileWritingIsAnErrorAndLeavesNoFile) {
  const std::vector<NamedTensor> two = two_tensors(), one{two.begin(), two.begin() + 1};
  for (const Format& format : format_table()) {
    if (format.write == nullptr) continue;
    SCOPED_TRACE(format.name);
    const TestFolder folder;
    const std::filesystem::path path = folder / ("a" + std::string(format.extension));
    const Metadata metadata{{"format", "pt"}, {"a key longer than a short string", "a value longer than a short string"}};
    const std::int64_t failures = run_out_of_memory([&] { save_tensors(path, format.name == "npy" ? one : two, metadata); },
                                                    [&] { ASSERT_EQ(folder.count(), 0u); });
    EXPECT_GT(failures, 5);
    EXPECT_EQ(folder.count(), 1u);
  }
}

TEST(OutOfMemory, RunningOutOfMemoryWhileReadingIsAnError) {
  const TestFolder folder;
  const std::vector<NamedTensor> two = two_tensors(), one{two.begin(), two.begin() + 1};
  for (const Format& format : format_table()) {
    SCOPED_TRACE(format.name);
    const std::filesystem::path path = folder / ("a" + std::string(format.extension));
    if (format.write != nullptr) save_tensors(path, format.name == "npy" ? one : two, {{"format", "pt"}});
    if (format.write == nullptr) folder.write(path.filename(), "{\"metadata\": {\"a\": [1, [2]]}, \"weight_map\": {\"mask\": \"a.safetensors\"}}");
    std::size_t count = 0;
    EXPECT_GT(run_out_of_memory([&] { count = open_tensors(path).tensors.size(); }, [] {}), 5);
    EXPECT_EQ(count, format.name == "npy" ? 1u : 2u);
  }
}

}  // namespace
}  // namespace polyhead::io
