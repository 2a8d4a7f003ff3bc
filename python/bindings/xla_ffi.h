// The C interface (XLA's FFI, api/c_api.h of jaxlib 0.5 and later) through which XLA calls a compiled function. This file declares the members that jax.cc
// reads, at the offsets that they have in that interface. So a build needs no jaxlib, and one build works with every jaxlib from 0.5. tests/python/test_jax.py
// compares every offset with jaxlib's header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace polyhead::python::xla {

// Every struct begins with its own size in the interface version that made it. Newer versions only append members.
struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};
inline constexpr int kMetadataExtension = 1;

struct Header {
  std::size_t struct_size;
  Extension* extension;
};

struct Version {
  Header header;
  int major, minor;
};

struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Error;

struct ErrorArguments {
  Header header;
  const char* message;
  int code;
};
inline constexpr int kInvalidArgument = 3, kResourceExhausted = 8, kInternal = 13;

struct Api {
  Header header;
  Version version;
  const void* internal;
  Error* (*make_error)(ErrorArguments*);
};

struct Buffer {
  Header header;
  int dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* extents;
};
inline constexpr int kBuffer = 1;  // the type code in Buffers::types of an operand or result that is a Buffer; no other code exists

struct Buffers {
  Header header;
  std::int64_t size;
  int* types;
  Buffer** buffers;
};

struct Bytes {
  const char* data;
  std::size_t size;
};
inline constexpr int kString = 4;  // the type code in Attributes::types of an attribute whose value is a Bytes

struct Attributes {
  Header header;
  std::int64_t size;
  int* types;
  Bytes** names;
  void** values;
};

struct CallFrame {
  Header header;
  const Api* api;
  void* context;
  int stage;
  Buffers operands, results;
  Attributes attributes;
};
inline constexpr int kExecute = 3;  // the value of CallFrame::stage in which a call must compute

}  // namespace polyhead::python::xla
