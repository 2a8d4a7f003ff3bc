// Between the bytes of a file and the elements of a tensor, for every format.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "io/file_bytes.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/tensor.h"

namespace polyhead::io {

// Bytes of a tensor; nullopt where the product of the size and all extents but zeros exceeds 2^63 - 1 (the strides would overflow).
std::optional<std::uint64_t> byte_count(DType dtype, const Shape& shape);

// Error (format) unless every byte of a boolean tensor is 0 or 1: any other value is undefined behaviour as a C++ bool.
void check_booleans(const FileBytes& file, std::string_view name, const Tensor& tensor);

// A row-major tensor: a view of `bytes` that keeps file.owner alive, or a copy where they are not aligned for the dtype.
Tensor view_or_copy(const FileBytes& file, std::span<std::byte> bytes, DType dtype, const Shape& shape);

// Writes the elements in row-major order.
void write_elements(AtomicFile& file, ConstTensorView tensor);

}  // namespace polyhead::io
