#include "models/model_folder.h"

#include <system_error>

namespace polyhead::models {

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(ErrorCode::io, "cannot make the folder ", folder.string(), ": ", error.message());
}

}  // namespace polyhead::models
