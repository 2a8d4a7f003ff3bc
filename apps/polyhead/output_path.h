// Checks of output paths, made before a command starts to compute.
#pragma once

#include <span>
#include <string>

namespace polyhead::app {

// Throws Error with the system's reason if no file can be written at `path`. Changes nothing on disk.
void check_writable(const std::string& path);

// Throws UsageError unless the path's extension is that of a writable format for several tensors.
void check_tensor_format(const std::string& option, const std::string& path);

// Throws UsageError if `path` is a file that the command reads. If an input is a model's folder, the command reads the model's files in it.
void check_not_input(const std::string& path, std::span<const std::string> inputs);

// Throws UsageError if both outputs are the same file.
void check_distinct(const std::string& first, const std::string& second);

}  // namespace polyhead::app
