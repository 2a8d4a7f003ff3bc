// Files that a command will write, checked before it works for them.
#pragma once

#include <span>
#include <string>

namespace polyhead::app {

// Error, with the system's reason, when a file could not be written at `path`; leaves everything as it was.
void check_writable(const std::string& path);

// UsageError when no writable format that holds several tensors has the path's extension.
void check_tensor_format(const std::string& option, const std::string& path);

// UsageError when writing `path` would replace a file that the command reads. Of an input that is a model's folder, the files that make up
// the model count.
void check_not_input(const std::string& path, std::span<const std::string> inputs);

// UsageError when two outputs are one file.
void check_distinct(const std::string& first, const std::string& second);

}  // namespace polyhead::app
