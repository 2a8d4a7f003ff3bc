#include "output_path.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "command.h"
#include "core/join.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/io/tensor_file.h"
#include "suggest.h"

namespace polyhead::app {

namespace fs = std::filesystem;

void check_writable(const std::string& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  // Do not test pipes and devices by opening them: opening a pipe waits for its reader, and opening a device may have side effects.
  if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status)) return;
  const io::AtomicFile probe{path};
}

void check_tensor_format(const std::string& option, const std::string& path) {
  const std::string extension = fs::path(path).extension().string();
  std::vector<std::string> extensions;
  for (const io::FormatDescription& format : io::formats()) {
    if (!format.writable || format.name == "npy") continue;  // npy holds only one tensor
    if (format.extension == extension) return;
    extensions.emplace_back(format.extension);
  }
  const std::string near = closest(extension, extensions);
  throw UsageError(cat(option, ": '", path, "' must end in ", join(extensions, {}, " or "),
                       near.empty() ? "" : cat("; did you mean '", fs::path(path).replace_extension(near).string(), "'?")));
}

void check_not_input(const std::string& path, std::span<const std::string> inputs) {
  std::error_code ignored;  // equivalent() sets it if a file does not exist, and returns false
  const auto same = [&](const fs::path& input) { return fs::equivalent(path, input, ignored); };
  for (const std::string& input : inputs) {
    bool read = same(input);
    // Only files of the model are protected: other files in its folder, such as a page of an earlier run, may be overwritten.
    for (fs::directory_iterator entry(input, ignored), end; !read && entry != end; entry.increment(ignored)) {
      constexpr std::array<std::string_view, 3> kOfModels{".json", ".safetensors", ".txt"};
      const bool of_model = std::ranges::find(kOfModels, entry->path().extension().string()) != kOfModels.end();
      read = of_model && same(entry->path());
    }
    if (read) throw UsageError(cat("'", path, "' is read by this command; choose another name for the output"));
  }
}

void check_distinct(const std::string& first, const std::string& second) {
  if (first.empty() || second.empty()) return;
  std::error_code ignored;
  if (fs::weakly_canonical(first, ignored) == fs::weakly_canonical(second, ignored))
    throw UsageError(cat("'", first, "' is given for two outputs"));
}

}  // namespace polyhead::app
