#include "io/file_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "io/system_error.h"

namespace polyhead::io::inline internal {
namespace {

struct stat status_of(const std::filesystem::path& path, int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) fail_errno("cannot open ", path.string());
  return status;
}

// Opens a file for reading. With O_NONBLOCK in `flags` a pipe is opened without waiting for its writer.
std::shared_ptr<const int> open_file(const std::filesystem::path& path, int flags) {
  auto number = std::make_unique<int>();
  *number = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | flags);
  if (*number < 0) fail_errno("cannot open ", path.string());
  return {number.release(), [](const int* opened) {
            close(*opened);
            delete opened;
          }};
}

FileBytes read_all(const std::filesystem::path& path, int descriptor) {
  auto memory = std::make_shared<std::vector<std::byte>>();
  std::size_t used = 0;
  while (true) {
    if (used == memory->size()) memory->resize(std::max<std::size_t>(1u << 16, 2 * used));
    const ssize_t count = read(descriptor, memory->data() + used, memory->size() - used);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_errno("cannot read ", path.string());
    if (count == 0) break;
    used += static_cast<std::size_t>(count);
  }
  return {path, std::span(memory->data(), used), memory};
}

std::atomic<const std::span<const BuiltInFile>*> g_built_in = nullptr;

// Returns the built-in file with this path; nullptr if there is none.
const BuiltInFile* find_built_in(std::string_view path) {
  const auto* const files = g_built_in.load();
  if (files == nullptr || !path.starts_with(kBuiltIn)) return nullptr;
  const auto file = std::ranges::find(*files, path.substr(kBuiltIn.size()), &BuiltInFile::name);
  return file == files->end() ? nullptr : &*file;
}

std::string_view kind_of(const struct stat& status) {
  if (S_ISDIR(status.st_mode)) return "a directory";
  if (S_ISFIFO(status.st_mode)) return "a pipe";
  return S_ISSOCK(status.st_mode) ? "a socket" : "a device";
}

void require_regular(const std::filesystem::path& path, const struct stat& status) {
  if (!S_ISREG(status.st_mode)) fail(ErrorCode::io, "cannot read ", path.string(), ": it is ", kind_of(status), "; a model's file must be a regular file");
}

FileBytes contents(const std::filesystem::path& path, bool map) {
  if (const BuiltInFile* const file = find_built_in(path.native())) {
    const auto bytes = std::as_bytes(std::span(file->bytes));
    const auto memory = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
    return {path, *memory, memory};
  }
  const std::shared_ptr<const int> descriptor = open_file(path, map ? 0 : O_NONBLOCK);
  const struct stat status = status_of(path, *descriptor);
  const bool regular = S_ISREG(status.st_mode);
  if (!map) require_regular(path, status);
  if (!regular && !S_ISFIFO(status.st_mode) && !S_ISSOCK(status.st_mode))
    fail(ErrorCode::io, "cannot read ", path.string(), ": it is ", S_ISDIR(status.st_mode) ? "a directory" : "neither a file nor a pipe");
  if (!regular || !map) return read_all(path, *descriptor);
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return {path, {}, nullptr};
  // Map the file private and writable: tensors are mutable views, and writing to one changes a copy of the page, not the file.
  // MAP_NORESERVE: do not reserve swap space for such copies.
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, *descriptor, 0);
  if (memory == MAP_FAILED) fail_errno("cannot map ", path.string());
  return {path, {static_cast<std::byte*>(memory), size}, std::shared_ptr<void>(memory, [size](void* p) { munmap(p, size); }), descriptor};
}

}  // namespace

void FileBytes::require_complete() const {
  if (!descriptor) return;
  const auto size = static_cast<std::size_t>(status_of(path, *descriptor).st_size);
  if (size < bytes.size())
    fail(ErrorCode::io, "cannot read ", path.string(), ": it was shortened from ", bytes.size(), " to ", size, " bytes while it was read");
}

void set_built_in_files(const std::span<const BuiltInFile>* files) { g_built_in = files; }

bool file_exists(const std::filesystem::path& path) {
  std::error_code unreadable;
  return find_built_in(path.native()) != nullptr || std::filesystem::exists(path, unreadable);
}

void require_regular(const std::filesystem::path& path) {
  struct stat status {};
  if (find_built_in(path.native()) == nullptr && stat(path.c_str(), &status) == 0) require_regular(path, status);
}

std::vector<std::string> files_in(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::string> names;
  std::filesystem::directory_iterator entry(folder, error);
  if (error) fail(ErrorCode::io, "cannot read the folder ", folder.string(), ": ", error.message());
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) names.push_back(entry->path().filename().string());
  std::ranges::sort(names);
  return names;
}

FileBytes map_file(const std::filesystem::path& path) { return contents(path, true); }

FileBytes read_file(const std::filesystem::path& path) { return contents(path, false); }

}  // namespace polyhead::io::inline internal
