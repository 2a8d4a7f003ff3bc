// For any bytes, a parser must return a file whose tensors can be read to the last element, or throw Error.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "io/file_bytes.h"
#include "polyhead/error.h"
#include "polyhead/io/attention_parameters.h"
#include "polyhead/io/tensor_file.h"

namespace polyhead::io {

// If a layer can be loaded, storing the layer must succeed.
inline void store_what_loads(TensorFile& file, const LoadAttention& options) {
  const AttentionParameters parameters = load_attention(file, options);
  try {
    (void)store_attention(parameters);
  } catch (const Error&) {
    __builtin_trap();
  }
}

inline int read_any_bytes(TensorFile (*read)(const FileBytes&), const std::uint8_t* data, std::size_t size) {
  // An allocation of exactly this size lets the sanitizer see reads beyond the end.
  auto memory = std::make_shared<std::vector<std::byte>>(size);
  if (size > 0) std::memcpy(memory->data(), data, size);
  try {
    TensorFile file = read({"fuzz", std::span(memory->data(), size), memory});
    memory.reset();
    for (NamedTensor& item : file.tensors) {
      if (!item.tensor.view().is_contiguous()) __builtin_trap();
      const Tensor copy = Tensor::copy_of(item.tensor);
      if (copy.shape() != item.tensor.shape()) __builtin_trap();
    }
    for (const LayoutMatch& match : find_attention(file.tensors)) {
      store_what_loads(file, {.layout = match.layout, .prefix = match.prefix});
    }
  } catch (const Error&) {
  }
  return 0;
}

}  // namespace polyhead::io
