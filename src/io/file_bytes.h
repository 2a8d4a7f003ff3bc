#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace polyhead::io {

// A file's contents in memory that may be written: a private map, or a copy of what came through a pipe.
struct FileBytes {
  std::filesystem::path path;  // for messages, and for the files beside it
  std::span<std::byte> bytes;
  std::shared_ptr<void> owner;

  std::string name() const { return path.string(); }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

FileBytes map_file(const std::filesystem::path& path);

}  // namespace polyhead::io
