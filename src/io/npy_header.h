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
inline constexpr std::size_t kNpyMaxHeader = 1u << 20;  // three keys and 16 extents need less than 1 KiB

// The bytes of a header's literal; the data follow directly.
struct NpyExtent {
  std::size_t begin = 0, length = 0;
};

// `first` are the first kNpyPreamble bytes of a file of `size` bytes (all if it has fewer); `where` names it in messages. Error (format).
NpyExtent npy_extent(std::string_view first, std::uint64_t size, std::string_view where);

// The literal: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }. Error (format).
NpyHeader parse_npy_header(std::string_view literal, std::string_view where);

// The whole header of a row-major tensor, magic included, padded so that the data are aligned to 64 bytes. Error (unsupported) for a dtype
// that npy cannot name.
std::string format_npy_header(DType dtype, const Shape& shape, std::string_view where);

}  // namespace polyhead::io
