// The C interface through which XLA calls a compiled function (its FFI, api/c_api.h of jaxlib 0.5 and later): declarations of what jax.cc reads, in
// that interface's layout. Declared here, so that a build needs no jaxlib and one build serves all of them; tests/python/test_jax.py compares every
// offset with jaxlib's header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace polyhead::python::xla {

// Every struct begins with its size in the version that made it; newer ones only append.
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
inline constexpr int kBuffer = 1;  // the only type of an operand or a result

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
inline constexpr int kString = 4;  // the type of an attribute that is Bytes

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
inline constexpr int kExecute = 3;  // a stage

}  // namespace polyhead::python::xla
