#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_bytes.h"
#include "polyhead/io/tensor_file.h"

namespace polyhead::io {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // in bytes from the end of the header
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of the header
  Metadata metadata;
};

// Parses the header and checks its grammar and types; the caller checks the offsets. An unknown, missing or repeated field is an
// Error (format) that names the file and the tensor.
SafetensorsHeader parse_safetensors_header(const FileBytes& file, std::string_view text);

}  // namespace polyhead::io
