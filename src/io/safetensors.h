// The safetensors format: 8 bytes of header length, a JSON header, the tensors' bytes without gaps.
// https://github.com/huggingface/safetensors (README, "Format")
#pragma once

#include "io/file_bytes.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/io/tensor_file.h"

namespace polyhead::io {

bool is_safetensors(std::string_view text);
TensorFile read_safetensors(const FileBytes& file);
void write_safetensors(AtomicFile& file, std::span<const NamedView> tensors, const Metadata& metadata);

}  // namespace polyhead::io
