#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)  // components call these
namespace polyhead::io::inline internal {

// A file's contents in writable memory: a private memory map, or a copy.
struct FileBytes {
  std::filesystem::path path;  // for messages, and to find other files in its folder
  std::span<std::byte> bytes;
  std::shared_ptr<void> owner;
  std::shared_ptr<const int> descriptor = nullptr;  // of the mapped file; nullptr for a copy

  std::string name() const { return path.string(); }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
  // Error (io) if the mapped file has become shorter: reading the missing pages would raise SIGBUS.
  void require_whole() const;
};

// A file that the program carries: it is opened by the path "polyhead:NAME".
struct BuiltInFile {
  std::string_view name;
  std::string_view bytes;
};
inline constexpr std::string_view kBuiltIn = "polyhead:";
// The list must stay where it is. Replaces the one given before.
void set_built_in_files(const std::span<const BuiltInFile>* files);

// Whether there is something that can be opened.
bool is_there(const std::filesystem::path& path);
// For files of tensors. Maps a regular file, reads a pipe to its end.
FileBytes map_file(const std::filesystem::path& path);
// For small files of a model's folder. Reads a copy, so that later changes of the file do not matter. Error unless it is a regular file.
FileBytes read_file(const std::filesystem::path& path);
// Error if the path is there and is no regular file. For files that are looked for by name, in a model's folder: opening a pipe that nobody
// writes to would wait for ever.
void require_regular(const std::filesystem::path& path);

}  // namespace polyhead::io::inline internal
#pragma GCC visibility pop
