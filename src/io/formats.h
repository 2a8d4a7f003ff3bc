#pragma once

#include "io/file_bytes.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/io/tensor_file.h"

namespace polyhead::io {

struct Format {
  std::string_view name;
  std::string_view extension;
  bool (*sniff)(std::string_view text);             // tells whether the contents look like this format
  TensorFile (*read)(const FileBytes& file);        // sets neither path nor format of the result; the caller does
  void (*write)(AtomicFile& file, std::span<const NamedView> tensors, const Metadata& metadata);  // nullptr: polyhead does not write this format
};

// safetensors (https://github.com/huggingface/safetensors, README, "Format"): the length of the header (8 bytes), a JSON header, the bytes of the tensors.
bool is_safetensors(std::string_view text);
TensorFile read_safetensors(const FileBytes& file);
void write_safetensors(AtomicFile& file, std::span<const NamedView> tensors, const Metadata& metadata);

// A model in several safetensors files with an index: {"metadata": {…}, "weight_map": {"tensor": "file beside the index", …}}.
bool is_shard_index(std::string_view text);
TensorFile read_shards(const FileBytes& index);

// All formats, in the order in which their sniff functions are tried.
std::span<const Format> format_table();

}  // namespace polyhead::io
