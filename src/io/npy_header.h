// The header of NumPy's npy format, versions 1 to 3 (numpy.lib.format: "Format Version 1.0" and after).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "polyhead/tensor_view.h"

namespace polyhead::io {

struct NpyHeader {
  DType dtype = DType::f32;
  bool big_endian = false;
  bool column_major = false;
  Shape shape;
};

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";
inline constexpr std::size_t kNpyPreamble = 12;         // magic, version and the longer of the two length fields
inline constexpr std::size_t kNpyMaxHeader = 1u << 20;  // bytes; a valid header has less than 1 KiB

// Where the header's Python literal begins in the file, and its length in bytes. The data follow directly.
struct NpyExtent {
  std::size_t begin = 0, length = 0;
};

// Finds the literal in a file of `size` bytes. `first`: its first kNpyPreamble bytes, or all if it is shorter. `where` names the file in
// messages. Error (format) if this is no npy file or ends too early.
NpyExtent npy_extent(std::string_view first, std::uint64_t size, std::string_view where);

// Parses a literal such as {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }. Error (format) if it is malformed.
NpyHeader parse_npy_header(std::string_view literal, std::string_view where);

// The whole header of a row-major tensor, magic included, padded so that the data are aligned to 64 bytes. Error (unsupported) for a dtype
// that npy cannot name.
std::string format_npy_header(DType dtype, const Shape& shape, std::string_view where);

}  // namespace polyhead::io
