#pragma once

#include "io/file_bytes.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/io/tensor_file.h"

namespace polyhead::io {

struct Format {
  std::string_view name;
  std::string_view extension;
  bool (*sniff)(std::string_view text);             // whether the contents look like this format
  TensorFile (*read)(const FileBytes& file);        // the caller sets path and format
  void (*write)(AtomicFile& file, std::span<const NamedView> tensors, const Metadata& metadata);  // nullptr: read only
};

// In the order in which sniff is called.
std::span<const Format> format_table();

}  // namespace polyhead::io
