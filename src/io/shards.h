// A model in several safetensors files with an index: {"metadata": {…}, "weight_map": {"tensor": "file beside the index", …}}.
#pragma once

#include "io/file_bytes.h"
#include "polyhead/io/tensor_file.h"

namespace polyhead::io {

bool is_shard_index(std::string_view text);
TensorFile read_shards(const FileBytes& index);

}  // namespace polyhead::io
