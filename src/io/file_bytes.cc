#include "io/file_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "io/system_error.h"

namespace polyhead::io {
namespace {

struct Descriptor {
  int number = -1;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

FileBytes map_regular(const std::filesystem::path& path, int descriptor, std::size_t size) {
  if (size == 0) return {path, {}, nullptr};
  // Private and writable: tensors are mutable views, and a write copies a page instead of reaching the file. No swap is reserved for that.
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
  if (memory == MAP_FAILED) fail_errno("cannot map ", path.string());
  return {path, {static_cast<std::byte*>(memory), size}, std::shared_ptr<void>(memory, [size](void* p) { munmap(p, size); })};
}

FileBytes read_pipe(const std::filesystem::path& path, int descriptor) {
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

}  // namespace

FileBytes map_file(const std::filesystem::path& path) {
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY)};
  if (file.number < 0) fail_errno("cannot open ", path.string());
  struct stat status {};
  if (fstat(file.number, &status) != 0) fail_errno("cannot open ", path.string());
  if (S_ISREG(status.st_mode)) return map_regular(path, file.number, static_cast<std::size_t>(status.st_size));
  if (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode)) return read_pipe(path, file.number);
  fail(ErrorCode::io, "cannot read ", path.string(), ": it is ", S_ISDIR(status.st_mode) ? "a directory" : "neither a file nor a pipe");
}

}  // namespace polyhead::io
