// NumPy's npy (one array) and npz (a zip archive of them).
#pragma once

#include "io/file_bytes.h"
#include "io/npy_header.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/io/tensor_file.h"

namespace polyhead::io {

bool is_npy(std::span<const std::byte> bytes);
TensorFile read_npy(const FileBytes& file);
void write_npy(AtomicFile& file, std::span<const NamedView> tensors, const Metadata& metadata);

bool is_npz(std::span<const std::byte> bytes);
TensorFile read_npz(const FileBytes& file);
void write_npz(AtomicFile& file, std::span<const NamedView> tensors, const Metadata& metadata);

// The bytes that the header announces; Error (format) where they overflow.
std::uint64_t npy_byte_count(const NpyHeader& header, std::string_view where);

// bytes, as many as the header announces, as a row-major little-endian tensor: a view of them where they are that already, else a copy.
Tensor npy_tensor(const FileBytes& file, std::span<std::byte> bytes, const NpyHeader& header, std::string_view name);

}  // namespace polyhead::io
