// Files of named tensors: safetensors (one file, or shards with an index), NumPy's npy and npz.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead::io {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

using Metadata = std::map<std::string, std::string>;

// The contents of a file. Every tensor is row major and contiguous.
struct TensorFile {
  std::filesystem::path path;
  std::string format;                // a name in formats()
  std::vector<NamedTensor> tensors;  // in the order of the file; names are unique
  Metadata metadata;                 // metadata of a safetensors file; empty for the other formats

  const Tensor* find(std::string_view name) const;  // nullptr: no such tensor
  Tensor* find(std::string_view name);
  const Tensor& at(std::string_view name) const;  // Error: no such tensor
};

// Opens a file in any of formats(), recognised by its contents, or a folder that holds model.safetensors or model.safetensors.index.json.
//  - safetensors and npy are mapped privately: a tensor is a view of the map and keeps it alive; writing to a tensor does not change the
//    file. A tensor that is not aligned for its dtype in the file is a copy. Reading a tensor after its file was shortened in place raises
//    SIGBUS; replacing the file by renaming, as AtomicFile does, is safe.
//  - npz: stored and deflated members, each unpacked into its own memory.
//  - npy, npz: big-endian and column-major arrays are converted. The tensor of an npy file is named by the file's stem.
// Error: ErrorCode::io when the file cannot be read, ErrorCode::format when its contents break the rules of its format. The reader never
// allocates more than about 1000 times the file's size (deflate's largest ratio).
TensorFile open_tensors(const std::filesystem::path& path);

// A tensor to save, with any strides.
struct NamedView {
  std::string name;
  ConstTensorView tensor;
};

// Writes a file whole or not at all (see AtomicFile); the extension names the format. The same tensors always give the same bytes.
// npy holds one tensor without a name. npy and npz drop the metadata; they have no bfloat16, so saving it is an Error.
void save_tensors(const std::filesystem::path& path, std::span<const NamedView> tensors, const Metadata& metadata = {});
void save_tensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata = {});

struct FormatDescription {
  std::string_view name;
  std::string_view extension;  // including the dot
  bool writable;
};

std::vector<FormatDescription> formats();

}  // namespace polyhead::io
#pragma GCC visibility pop
