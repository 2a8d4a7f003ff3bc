#include "polyhead/models/default_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "io/file_bytes.h"
#include "models/test_error_matcher.h"

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
  std::uintmax_t bytes = 0;
  for (const std::string& name : folders)
    for (const auto& entry : fs::directory_iterator(source / name)) {
      const std::string file = entry.path().filename().string();
      std::ifstream stream(entry.path(), std::ios::binary);
      const std::string expected{std::istreambuf_iterator<char>(stream), {}};
      EXPECT_TRUE(io::read_file(default_model(name) / file).text() == expected) << name << '/' << file;
      bytes += expected.size();
    }
  EXPECT_LE(bytes, 1'500'000u);
}

TEST(DefaultModels, UnknownNamesAndFilesAreErrors) {
  EXPECT_ERROR(default_model("nothing"), invalid_argument, HasSubstr("there is no model 'nothing' in the library; it has "));
  EXPECT_ERROR(io::read_file("polyhead:nothing/config.json"), io, HasSubstr("No such file"));
  for (const std::string& name : default_models()) EXPECT_ERROR(io::read_file(default_model(name) / "nothing"), io, HasSubstr("No such file"));
}

}  // namespace
}  // namespace polyhead::models
