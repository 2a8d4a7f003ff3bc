// What the bytes of a tensor must hold, whatever the format.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "io/file_bytes.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/tensor.h"

namespace polyhead::io {

// Bytes of a tensor; none where shape and size overflow 2^63 - 1, zero extents not counted (strides of such a shape would overflow too).
std::optional<std::uint64_t> byte_count(DType dtype, const Shape& shape);

// Error (format) unless every byte of a boolean tensor is 0 or 1: any other value is undefined behaviour as a C++ bool.
void check_booleans(const FileBytes& file, std::string_view name, const Tensor& tensor);

// bytes as a row-major tensor: a view that keeps file.owner alive where they are aligned for the dtype, else a copy.
Tensor view_or_copy(const FileBytes& file, std::span<std::byte> bytes, DType dtype, const Shape& shape);

// The elements in row-major order.
void write_elements(AtomicFile& file, ConstTensorView tensor);

}  // namespace polyhead::io
