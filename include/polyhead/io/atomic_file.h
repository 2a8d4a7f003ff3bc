// Files that appear whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#pragma GCC visibility push(default)
namespace polyhead::io {

// Writes to a temporary file in the target's folder; commit() renames it over the target. Without commit() the destructor removes the
// temporary file and leaves the target unchanged. Every failure is an Error (ErrorCode::io) that names the target and the system's reason.
//  - A new file gets the permissions that the umask leaves; a file that is replaced keeps its permissions.
//  - A symbolic link stays, and what it points at is replaced.
//  - A target that is not a regular file (/dev/stdout, /dev/fd/N, a pipe, a device) is written directly.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

  const std::filesystem::path& path() const { return path_; }  // the target's path as the caller gave it

 private:
  void open_temporary();
  void forget_temporary();

  std::filesystem::path path_;
  std::filesystem::path target_;     // path_, or the file that the symbolic link path_ points to
  std::filesystem::path temporary_;  // empty: the target is written directly
  int descriptor_ = -1;
};

// Removes the temporary files of all living AtomicFiles. Async-signal-safe: for the signal handlers of a program that is about to end. The
// library installs no handler.
void remove_temporary_files() noexcept;

// Writes and commits a small file.
void write_file(const std::filesystem::path& path, std::string_view contents);

}  // namespace polyhead::io
#pragma GCC visibility pop
