// Reads and writes files of named tensors: safetensors (one file, or several files with an index) and NumPy's npy and npz.
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

// The contents of a file. Every tensor is contiguous, in row-major order.
struct TensorFile {
  std::filesystem::path path;
  std::string format;                // the name of the file format, one of those in formats()
  std::vector<NamedTensor> tensors;  // the tensors in the order of the file; their names are unique
  Metadata metadata;                 // metadata of a safetensors file; empty for the other formats

  const Tensor* find(std::string_view name) const;  // Returns nullptr if no tensor has this name.
  Tensor* find(std::string_view name);
  const Tensor& at(std::string_view name) const;  // Throws an Error if no tensor has this name.
};

// Opens a file in any of formats(), recognised by its contents, or a folder that holds model.safetensors or model.safetensors.index.json.
//  - safetensors and npy files are mapped into memory: a tensor is a view of the mapping and keeps it alive; writing to a tensor does not change the
//    file. A tensor that is not aligned for its dtype in the file is a copy. Reading a tensor after its file was shortened in place raises
//    SIGBUS; replacing the file by renaming, as AtomicFile does, is safe.
//  - npz: members may be stored or deflated; each is unpacked into its own memory.
//  - npy, npz: big-endian and column-major arrays are converted. The tensor of an npy file has the file's name without its extension.
// Error: ErrorCode::io when the file cannot be read, ErrorCode::format when its contents break the rules of its format. The reader never
// allocates more than about 1000 times the file's size (deflate's largest ratio).
TensorFile open_tensors(const std::filesystem::path& path);

// A tensor to save; it may have any strides.
struct NamedView {
  std::string name;
  ConstTensorView tensor;
};

// Writes a file as a whole or not at all (see AtomicFile). The extension names the format. The same tensors always give the same bytes. An npy file holds one
// tensor and no name. npy and npz files hold no metadata; saving a bfloat16 tensor in them is an Error.
void save_tensors(const std::filesystem::path& path, std::span<const NamedView> tensors, const Metadata& metadata = {});
void save_tensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata = {});

struct FormatDescription {
  std::string_view name;
  std::string_view extension;  // the extension of file names, with its dot
  bool writable;
};

std::vector<FormatDescription> formats();

}  // namespace polyhead::io
#pragma GCC visibility pop
