#include "temporary_folder.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "core/text.h"

namespace polyhead::app {
namespace {

namespace fs = std::filesystem;

std::atomic<const TemporaryFolder*> living{nullptr};
static_assert(std::atomic<const TemporaryFolder*>::is_always_lock_free);  // a signal handler must not wait for a lock

}  // namespace

TemporaryFolder::TemporaryFolder(const std::vector<std::string>& names) {
  require(living == nullptr, "TemporaryFolder: another one exists; only one may exist at a time");
  std::string name = fs::temp_directory_path() / "polyhead-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) fail(ErrorCode::io, "cannot make a folder in ", fs::temp_directory_path().string(), ": ", std::generic_category().message(errno));
  path_ = name;
  for (const std::string& file : names) files_.push_back(path_ / file);
  for (const std::string& file : names)  // append the folders after all files, because a folder must be empty when it is removed
    for (fs::path folder = (path_ / file).parent_path(); folder != path_; folder = folder.parent_path()) files_.push_back(folder);
  living = this;
}

TemporaryFolder::~TemporaryFolder() {
  living = nullptr;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void remove_temporary_folder() noexcept {
  const TemporaryFolder* const folder = living.exchange(nullptr);
  if (folder == nullptr) return;
  for (const std::string& file : folder->files_)
    if (::unlink(file.c_str()) != 0) ::rmdir(file.c_str());
  ::rmdir(folder->path_.c_str());
}

}  // namespace polyhead::app
