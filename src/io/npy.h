// Reads and writes NumPy's formats npy (one array) and npz (a zip archive of npy files).
#pragma once

#include "io/file_bytes.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/io/tensor_file.h"

namespace polyhead::io {

// The header of npy, versions 1 to 3 (numpy.lib.format: "Format Version 1.0" and after).
struct NpyHeader {
  DType dtype = DType::f32;
  bool big_endian = false;
  bool column_major = false;
  Shape shape;
};

inline constexpr std::size_t kNpyPreamble = 12;  // bytes of magic, version and length; version 1 has a length of 2 bytes, versions 2 and 3 have 4

// Position of the header's Python literal in the file, and its length in bytes. The data follow directly.
struct NpyExtent {
  std::size_t begin = 0, length = 0;
};

// Finds the literal in a file of `size` bytes. `first`: the first kNpyPreamble bytes of the file, or all bytes of a shorter file. `where` names the file
// in messages. Error (format) if this is no npy file or ends too early.
NpyExtent npy_extent(std::string_view first, std::uint64_t size, std::string_view where);

// Parses a literal such as {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }. Error (format) if it is malformed.
NpyHeader parse_npy_header(std::string_view literal, std::string_view where);

// Returns the whole header of a row-major tensor, magic included, padded so that the data are aligned to 64 bytes. Error (unsupported) for a dtype
// that npy cannot name.
std::string format_npy_header(DType dtype, const Shape& shape, std::string_view where);

bool is_npy(std::string_view text);
TensorFile read_npy(const FileBytes& file);
void write_npy(AtomicFile& file, std::span<const NamedView> tensors, const Metadata& metadata);

bool is_npz(std::string_view text);
TensorFile read_npz(const FileBytes& file);
void write_npz(AtomicFile& file, std::span<const NamedView> tensors, const Metadata& metadata);

// Error (format) unless `after`, the number of bytes after the header, is the size of the array. `where` names the file in messages.
void check_npy_size(const NpyHeader& header, std::uint64_t after, std::string_view where);

// Returns the array as a row-major little-endian tensor. It is a view of `bytes`, in which big-endian elements are swapped in place, or a copy if
// the bytes are column-major or not aligned.
Tensor npy_tensor(const FileBytes& file, std::span<std::byte> bytes, const NpyHeader& header, std::string_view name);

}  // namespace polyhead::io
