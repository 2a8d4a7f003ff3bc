#include "temporary_folder.h"

#include <gtest/gtest.h>

#include <fstream>

namespace polyhead::app {
namespace {

namespace fs = std::filesystem;

TEST(TemporaryFolder, IsRemovedWithItsFiles) {
  fs::path path;
  {
    const TemporaryFolder folder({"a"});
    path = folder.path();
    std::ofstream(path / "a") << "a";
    std::ofstream(path / "other") << "b";
    EXPECT_TRUE(fs::exists(path / "a"));
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(TemporaryFolder, SignalHandlersRemoveIt) {
  const TemporaryFolder folder({"a", "never written", "b"});
  for (const char* name : {"a", "b"}) std::ofstream(folder.path() / name) << name;
  remove_temporary_folder();
  EXPECT_FALSE(fs::exists(folder.path()));
  remove_temporary_folder();  // a second call has nothing to remove and must do nothing
}

}  // namespace
}  // namespace polyhead::app
