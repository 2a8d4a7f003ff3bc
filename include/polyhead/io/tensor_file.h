// Files of named tensors: safetensors (one file, or shards with an index), NumPy's npy and npz.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/tensor.h"

namespace polyhead::io {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

using Metadata = std::map<std::string, std::string>;

// The contents of a file. Every tensor is row major and contiguous.
struct TensorFile {
  std::filesystem::path path;
  std::string format;                // the name of a row of formats()
  std::vector<NamedTensor> tensors;  // names are unique; in the order of the file
  Metadata metadata;                 // of safetensors; empty for the other formats

  const Tensor* find(std::string_view name) const;  // nullptr: there is none
  Tensor* find(std::string_view name);
  const Tensor& at(std::string_view name) const;  // Error when there is none
};

// Opens a file in any of formats(), which its contents tell, or a folder that holds model.safetensors or model.safetensors.index.json.
//  - safetensors and npy are mapped privately: a tensor is a view of the map, which it keeps alive; writing to it leaves the file alone.
//    A tensor that is not aligned for its dtype in the file is a copy. The file must not be truncated while it is mapped.
//  - npz: stored and deflated members, each read into memory of its own.
//  - npy, npz: big-endian arrays are converted, column-major ones made row major. The tensor of an npy file is named by the file's stem.
// Error: ErrorCode::io when the file cannot be read, ErrorCode::format when its contents are not what its format says. No input makes the
// reader allocate more than about a thousand times the file's size (deflate's largest ratio).
TensorFile open_tensors(const std::filesystem::path& path);

// What is saved; the tensors may have any strides.
struct NamedView {
  std::string name;
  ConstTensorView tensor;
};

// Writes a file whole or not at all (see AtomicFile); the extension names the format. The same tensors always give the same bytes.
// npy holds one tensor and no name; npy and npz have no place for metadata, which is left out, and no bfloat16, which is an Error.
void save_tensors(const std::filesystem::path& path, std::span<const NamedView> tensors, const Metadata& metadata = {});
void save_tensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata = {});

struct FormatDescription {
  std::string_view name;
  std::string_view extension;  // with the dot
  bool writable;
};

std::vector<FormatDescription> formats();

}  // namespace polyhead::io
