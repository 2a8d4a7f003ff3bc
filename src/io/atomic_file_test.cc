#include "polyhead/io/atomic_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <thread>

#include "io/test_files.h"
#include "support/child_process.h"

namespace polyhead::io {
namespace {

using ::testing::HasSubstr;

mode_t mode_of(const std::filesystem::path& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
}

TEST(AtomicFile, AppearsOnCommitAndNotBefore) {
  const TestFolder folder;
  AtomicFile file(folder / "a.txt");
  file.write("half");
  EXPECT_FALSE(std::filesystem::exists(folder / "a.txt"));
  file.write(" and half");
  file.commit();
  EXPECT_EQ(read_bytes(folder / "a.txt"), "half and half");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(AtomicFile, WithoutCommitTheOldFileStaysAndNoOtherFileIsLeft) {
  const TestFolder folder;
  folder.write("a.txt", "old");
  {
    AtomicFile file(folder / "a.txt");
    file.write("new");
  }
  EXPECT_EQ(read_bytes(folder / "a.txt"), "old");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(AtomicFile, ASignalHandlerCanRemoveTheTemporaryFiles) {
  const TestFolder folder;
  { AtomicFile gone(folder / "gone.txt"); }
  AtomicFile whole(folder / "whole.txt"), half(folder / "half.txt"), other(folder / "other.txt");
  whole.commit();
  half.write("half");
  EXPECT_EQ(folder.count(), 3u);
  remove_temporary_files();
  EXPECT_EQ(folder.count(), 1u);
  remove_temporary_files();  // has no effect: no temporary file is left
  EXPECT_TRUE(std::filesystem::exists(folder / "whole.txt"));
}

TEST(AtomicFile, AFullDiskLeavesTheOldFile) {
  const TestFolder folder;
  folder.write("a.txt", "old");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of([&] { write_file(folder / "a.txt", std::string(5000, 'x')); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, HasSubstr("io: cannot write " + (folder / "a.txt").string() + ": File too large"));
  EXPECT_EQ(read_bytes(folder / "a.txt"), "old");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(AtomicFile, ANewFileHasThePermissionsOfTheUmask) {
  const TestFolder folder;
  const mode_t before = umask(027);
  write_file(folder / "a.txt", "x");
  umask(before);
  EXPECT_EQ(mode_of(folder / "a.txt"), 0640u);
}

TEST(AtomicFile, AReplacedFileKeepsItsPermissions) {
  const TestFolder folder;
  chmod(folder.write("a.txt", "old").c_str(), 0604);
  write_file(folder / "a.txt", "new");
  EXPECT_EQ(mode_of(folder / "a.txt"), 0604u);
  EXPECT_EQ(read_bytes(folder / "a.txt"), "new");
}

TEST(AtomicFile, ASymbolicLinkStaysAndItsTargetIsReplaced) {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "inner");
  folder.write("inner/real.txt", "old");
  std::filesystem::create_symlink("inner/real.txt", folder / "link");
  std::filesystem::create_symlink("link", folder / "link-to-link");
  write_file(folder / "link-to-link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link-to-link"));
  EXPECT_EQ(read_bytes(folder / "inner/real.txt"), "new");
}

TEST(AtomicFile, ALinkToNothingMakesItsTarget) {
  const TestFolder folder;
  std::filesystem::create_symlink("later.txt", folder / "link");
  write_file(folder / "link", "new");
  EXPECT_EQ(read_bytes(folder / "later.txt"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
}

TEST(AtomicFile, ALoopOfLinksIsAnError) {
  const TestFolder folder;
  std::filesystem::create_symlink("b", folder / "a");
  std::filesystem::create_symlink("a", folder / "b");
  EXPECT_THAT(error_of([&] { write_file(folder / "a", "x"); }), HasSubstr("symbolic links"));
}

TEST(AtomicFile, PathsThatCannotBeWrittenSayWhy) {
  const TestFolder folder;
  folder.write("file", "x");
  EXPECT_THAT(error_of([&] { write_file(folder / "none/a.txt", "x"); }), HasSubstr("No such file or directory"));
  EXPECT_THAT(error_of([&] { write_file(folder / "file/a.txt", "x"); }), HasSubstr("Not a directory"));
  EXPECT_THAT(error_of([&] { write_file(folder / ".", "x"); }), HasSubstr("it is a directory"));
  EXPECT_THAT(error_of([&] { write_file("", "x"); }), HasSubstr("names no file"));
  EXPECT_THAT(error_of([&] { write_file(folder / "none/", "x"); }), HasSubstr("names no file"));
  EXPECT_THAT(error_of([&] { write_file("/dev/full", "x"); }), HasSubstr("io: cannot write /dev/full: No space left on device"));
  EXPECT_THAT(error_of([&] { write_file("/proc/self/fd/987654", "x"); }), HasSubstr("Bad file descriptor"));
  EXPECT_EQ(folder.count(), 1u);
}

// The test becomes another user in a child process, because root may write every file.
TEST(AtomicFile, AProtectedFileIsNotReplaced) {
  const TestFolder folder;
  chmod((folder / "").c_str(), 0777);
  chmod(folder.write("a.txt", "old").c_str(), 0444);
  const int status = test::status_of_child([&] {
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0 && setuid(kNobody) != 0) return 2;
    return error_of([&] { write_file(folder / "a.txt", "new"); }).find("Permission denied") != std::string::npos ? 0 : 1;
  });
  if (status == 2) GTEST_SKIP() << "this process may not become another user";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_bytes(folder / "a.txt"), "old");
}

TEST(AtomicFile, TheLongestNameIsPossible) {
  const TestFolder folder;
  const std::string name(255, 'n');
  write_file(folder / name, "x");
  EXPECT_EQ(read_bytes(folder / name), "x");
}

TEST(AtomicFile, APipeIsWrittenDirectly) {
  const TestFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::string received;
  std::thread reader([&] { received = read_bytes(folder / "pipe"); });
  write_file(folder / "pipe", "through");
  reader.join();
  EXPECT_EQ(received, "through");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(AtomicFile, AnOpenDescriptorIsAppendedTo) {
  const TestFolder folder;
  folder.write("log", "first\n");
  const int descriptor = open((folder / "log").c_str(), O_WRONLY | O_APPEND);
  ASSERT_GE(descriptor, 0);
  std::filesystem::create_symlink("/dev/fd/" + std::to_string(descriptor), folder / "link");
  write_file("/dev/fd/" + std::to_string(descriptor), "second\n");
  write_file(folder / "link", "third\n");
  close(descriptor);
  EXPECT_EQ(read_bytes(folder / "log"), "first\nsecond\nthird\n");
}

TEST(AtomicFile, NothingCanBeWrittenAfterTheCommit) {
  const TestFolder folder;
  AtomicFile file(folder / "a.txt");
  file.commit();
  EXPECT_THAT(error_of([&] { file.write("x"); }), HasSubstr("is committed"));
  EXPECT_THAT(error_of([&] { file.commit(); }), HasSubstr("is committed"));
}

}  // namespace
}  // namespace polyhead::io
