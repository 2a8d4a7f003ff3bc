// Files that are replaced as a whole or not at all: a reader never sees a half-written file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#pragma GCC visibility push(default)
namespace polyhead::io {

// Writes to a temporary file in the target's folder; commit() renames it over the target. Without commit() the destructor removes the
// temporary file and leaves the target unchanged. Every failure is an Error (ErrorCode::io) that names the target and the system's reason.
//  - A new file gets the permissions that the umask allows. A file that is replaced keeps its permissions.
//  - A symbolic link stays; the file that it points to is replaced.
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
  std::filesystem::path temporary_;  // empty: write() writes to the target itself
  int descriptor_ = -1;
};

// Removes the temporary files of all AtomicFiles that exist. It is async-signal-safe, so a program may call it from a signal handler before it ends. The
// library installs no signal handler.
void remove_temporary_files() noexcept;

// Writes and commits a small file.
void write_file(const std::filesystem::path& path, std::string_view contents);

}  // namespace polyhead::io
#pragma GCC visibility pop
