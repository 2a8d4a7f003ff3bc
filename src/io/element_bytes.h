// Converts between the bytes of a file and the elements of a tensor. All formats use it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "io/file_bytes.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/tensor.h"

namespace polyhead::io {

// Returns the size of a tensor in bytes. Returns nullopt if the element size times all extents other than 0 exceeds 2^63 - 1, because the strides would
// overflow.
std::optional<std::uint64_t> byte_count(DType dtype, const Shape& shape);

// Error (format) unless every byte of a boolean tensor is 0 or 1: reading another value as a C++ bool is undefined.
void check_booleans(const FileBytes& file, std::string_view name, const Tensor& tensor);

// Returns `bytes` as a row-major tensor: a view that keeps file.owner alive, or a copy if the bytes are not aligned for the dtype.
Tensor view_or_copy(const FileBytes& file, std::span<std::byte> bytes, DType dtype, const Shape& shape);

// Writes the elements in row-major order.
void write_elements(AtomicFile& file, ConstTensorView tensor);

}  // namespace polyhead::io
