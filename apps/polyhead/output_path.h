// Files that a command will write, checked before it works for them.
#pragma once

#include <string>

namespace polyhead::app {

// Error, with the system's reason, when a file could not be written at `path`; leaves everything as it was.
void check_writable(const std::string& path);

// UsageError when no writable format that holds several tensors has the path's extension.
void check_tensor_format(const std::string& option, const std::string& path);

// UsageError when two outputs are one file.
void check_distinct(const std::string& first, const std::string& second);

}  // namespace polyhead::app
