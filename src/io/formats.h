#pragma once

#include "io/file_bytes.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/io/tensor_file.h"

namespace polyhead::io {

struct Format {
  std::string_view name;
  std::string_view extension;
  bool (*sniff)(std::span<const std::byte> bytes);  // whether the contents look like this format
  TensorFile (*read)(const FileBytes& file);        // path and format are filled in by the caller
  void (*write)(AtomicFile& file, std::span<const NamedView> tensors, const Metadata& metadata);  // nullptr: only read
};

// The table, in the order in which sniff is asked.
std::span<const Format> format_table();

}  // namespace polyhead::io
