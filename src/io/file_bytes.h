#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace polyhead::io {

// A file's contents in writable memory: a private map, or a copy.
struct FileBytes {
  std::filesystem::path path;  // for messages, and for the files beside it
  std::span<std::byte> bytes;
  std::shared_ptr<void> owner;
  std::shared_ptr<const int> descriptor = nullptr;  // of a mapped file

  std::string name() const { return path.string(); }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
  // Error (io) when the mapped file has become shorter: reading the missing pages would raise SIGBUS.
  void require_whole() const;
};

// Tensors: a regular file is mapped, a pipe is read to its end.
FileBytes map_file(const std::filesystem::path& path);
// Small files: read to the end, so that no later change of the file matters.
FileBytes read_file(const std::filesystem::path& path);

}  // namespace polyhead::io
