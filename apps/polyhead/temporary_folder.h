// A folder for files that a command needs only while it runs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace polyhead::app {

// A new folder in the system's folder of temporary files. The destructor removes it with all that is in it. At most one TemporaryFolder may exist at a time.
class TemporaryFolder {
 public:
  // names: the files that will be in the folder, which remove_temporary_folder() removes.
  explicit TemporaryFolder(const std::vector<std::string>& names);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::vector<std::string> files_;  // paths
  friend void remove_temporary_folder() noexcept;
};

// Removes the current TemporaryFolder and the files that its constructor was given by name. Async-signal-safe: for signal handlers of a program that is about to end.
void remove_temporary_folder() noexcept;

}  // namespace polyhead::app
