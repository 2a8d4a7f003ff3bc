// Reads and writes NumPy's formats npy (one array) and npz (a zip archive of npy files).
#pragma once

#include "io/file_bytes.h"
#include "io/npy_header.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/io/tensor_file.h"

namespace polyhead::io {

bool is_npy(std::string_view text);
TensorFile read_npy(const FileBytes& file);
void write_npy(AtomicFile& file, std::span<const NamedView> tensors, const Metadata& metadata);

bool is_npz(std::string_view text);
TensorFile read_npz(const FileBytes& file);
void write_npz(AtomicFile& file, std::span<const NamedView> tensors, const Metadata& metadata);

// Error (format) unless `after`, the number of bytes after the header, is the size of the array. `where` names the file in messages.
void check_npy_size(const NpyHeader& header, std::uint64_t after, std::string_view where);

// The array as a row-major little-endian tensor. It is a view of `bytes`, in which big-endian elements are swapped in place, or a copy if
// the bytes are column-major or not aligned.
Tensor npy_tensor(const FileBytes& file, std::span<std::byte> bytes, const NpyHeader& header, std::string_view name);

}  // namespace polyhead::io
