#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)  // exported: the libraries of other components call these
namespace polyhead::io::inline internal {

// A file's contents in writable memory: a private memory map, or a copy.
struct FileBytes {
  std::filesystem::path path;  // for messages, and to find other files in its folder
  std::span<std::byte> bytes;
  std::shared_ptr<void> owner;
  std::shared_ptr<const int> descriptor = nullptr;  // descriptor of the mapped file; nullptr for a copy

  std::string name() const { return path.string(); }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
  // Error (io) if the mapped file has become shorter: reading the missing pages would raise SIGBUS.
  void require_complete() const;
};

// A file that is built into the program; the path "polyhead:NAME" opens it.
struct BuiltInFile {
  std::string_view name;
  std::string_view bytes;
};
inline constexpr std::string_view kBuiltIn = "polyhead:";
// Sets the list of built-in files; it replaces an earlier one. The pointer is stored, so the list must stay in place.
void set_built_in_files(const std::span<const BuiltInFile>* files);

// Returns whether the path exists, as a file on disk or built in.
bool file_exists(const std::filesystem::path& path);
// Returns the names of the files of a folder, sorted. Error if the folder cannot be read.
std::vector<std::string> files_in(const std::filesystem::path& folder);
// Maps a regular file; reads a pipe to its end. For files of tensors.
FileBytes map_file(const std::filesystem::path& path);
// Reads a file into memory, so that later changes of the file do not matter. For small files of a model's folder. Error unless it is a regular file.
FileBytes read_file(const std::filesystem::path& path);
// Error if the path exists and is not a regular file. For files of fixed names in a model's folder: opening a pipe that has no writer would wait for ever.
void require_regular(const std::filesystem::path& path);

}  // namespace polyhead::io::inline internal
#pragma GCC visibility pop
