#include "polyhead/io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

#include "io/system_error.h"

namespace polyhead::io {
namespace {

constexpr int kMaxLinks = 40;  // the most symbolic links that Linux follows in one path

// Returns the open descriptor that a path such as /dev/stdout names; nullopt for an ordinary path. Opening /dev/stdout again would lose the
// append mode of `>> log`.
std::optional<int> own_descriptor(const std::string& path) {
  if (path == "/dev/stdout") return 1;
  if (path == "/dev/stderr") return 2;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    int number = 0;
    const char* end = path.data() + path.size();
    const auto [last, error] = std::from_chars(path.data() + folder.size(), end, number);
    if (error == std::errc() && last == end) return number;
  }
  return std::nullopt;
}

// Paths of the temporary files that remove_temporary_files() deletes. There is room for 16, which is enough: the command line program writes one file at a
// time.
std::array<std::atomic<const char*>, 16> temporary_names{};
static_assert(std::atomic<const char*>::is_always_lock_free);  // a signal handler must not wait for a lock

void replace_name(const char* from, const char* to) {
  for (std::atomic<const char*>& name : temporary_names) {
    const char* expected = from;
    if (name.compare_exchange_strong(expected, to)) return;
  }
}

}  // namespace

void remove_temporary_files() noexcept {
  for (std::atomic<const char*>& name : temporary_names) {
    if (const char* path = name.exchange(nullptr)) unlink(path);
  }
}

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path), target_(path) {
  for (int links = 0;; ++links) {
    if (const std::optional<int> number = own_descriptor(target_.string())) {
      descriptor_ = fcntl(*number, F_DUPFD_CLOEXEC, 0);
      if (descriptor_ < 0) fail_errno("cannot write ", path_.string());
      return;
    }
    std::error_code no_link;
    const std::filesystem::path next = std::filesystem::read_symlink(target_, no_link);
    if (no_link) break;
    if (links == kMaxLinks) fail(ErrorCode::io, "cannot write ", path_.string(), ": more than ", kMaxLinks, " symbolic links");
    target_ = target_.parent_path() / next;
  }
  struct stat status {};
  if (stat(target_.c_str(), &status) != 0) {
    if (errno != ENOENT) fail_errno("cannot write ", path_.string());
    open_temporary();
  } else if (S_ISDIR(status.st_mode)) {
    fail(ErrorCode::io, "cannot write ", path_.string(), ": it is a directory");
  } else if (S_ISREG(status.st_mode)) {
    // Check the permission first: a rename would replace even a file that its owner protected from writing.
    if (access(target_.c_str(), W_OK) != 0) fail_errno("cannot write ", path_.string());
    open_temporary();
    (void)fchmod(descriptor_, status.st_mode & 07777);  // ignored: some file systems have no permissions
  } else {
    descriptor_ = open(target_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (descriptor_ < 0) fail_errno("cannot write ", path_.string());
  }
}

void AtomicFile::open_temporary() {
  if (!target_.has_filename()) fail(ErrorCode::io, "cannot write '", path_.string(), "': it names no file");
  static std::atomic<unsigned> counter{0};
  // The name does not contain the target's name, which may already have the maximum length.
  for (int attempt = 0; attempt < 1000 && descriptor_ < 0; ++attempt) {
    temporary_ = target_.parent_path() / cat(".polyhead-", getpid(), "-", counter.fetch_add(1, std::memory_order_relaxed), ".tmp");
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) break;
  }
  if (descriptor_ < 0) {
    temporary_.clear();
    fail_errno("cannot write ", path_.string());
  }
  replace_name(nullptr, temporary_.c_str());
}

void AtomicFile::forget_temporary() {
  replace_name(temporary_.c_str(), nullptr);
  temporary_.clear();
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (temporary_.empty()) return;
  unlink(temporary_.c_str());
  forget_temporary();
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  require(descriptor_ >= 0, "AtomicFile: ", path_.string(), " is committed; nothing can be written to it");
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), std::min<std::size_t>(bytes.size(), 1u << 30));
    if (count < 0) {
      if (errno == EINTR) continue;
      fail_errno("cannot write ", path_.string());
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  require(descriptor_ >= 0, "AtomicFile: ", path_.string(), " is committed already");
  const int descriptor = std::exchange(descriptor_, -1);
  if (close(descriptor) != 0 && errno != EINTR) fail_errno("cannot write ", path_.string());  // on NFS, only close() reports a full disk
  if (temporary_.empty()) return;
  if (rename(temporary_.c_str(), target_.c_str()) != 0) fail_errno("cannot write ", path_.string());
  forget_temporary();
}

void write_file(const std::filesystem::path& path, std::string_view contents) {
  AtomicFile file(path);
  file.write(contents);
  file.commit();
}

}  // namespace polyhead::io
