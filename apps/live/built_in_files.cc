// The files of the models that the module carries, in place of src/io/file_bytes.cc and src/io/tensor_file.cc: a page has no others.
#include <algorithm>
#include <memory>
#include <vector>

#include "core/text.h"
#include "io/file_bytes.h"
#include "io/formats.h"

namespace polyhead::io {
inline namespace internal {
namespace {

const std::span<const BuiltInFile>* built_in = nullptr;

const BuiltInFile* find(const std::filesystem::path& path) {
  const std::string_view name = path.native();
  if (built_in == nullptr || !name.starts_with(kBuiltIn)) return nullptr;
  const auto file = std::ranges::find(*built_in, name.substr(kBuiltIn.size()), &BuiltInFile::name);
  return file == built_in->end() ? nullptr : &*file;
}

}  // namespace

void set_built_in_files(const std::span<const BuiltInFile>* files) { built_in = files; }
bool is_there(const std::filesystem::path& path) { return find(path) != nullptr; }
void require_regular(const std::filesystem::path&) {}
void FileBytes::require_whole() const {}

FileBytes read_file(const std::filesystem::path& path) {
  const BuiltInFile* const file = find(path);
  if (file == nullptr) fail(ErrorCode::io, "cannot open ", path.native(), ": a page has no files but those of its built-in models");
  const auto bytes = std::as_bytes(std::span(file->bytes));
  const auto memory = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  return {path, *memory, memory};
}

FileBytes map_file(const std::filesystem::path& path) { return read_file(path); }

}  // namespace internal

const Tensor* TensorFile::find(std::string_view name) const {
  const auto item = std::ranges::find(tensors, name, &NamedTensor::name);
  return item == tensors.end() ? nullptr : &item->tensor;
}

Tensor* TensorFile::find(std::string_view name) {
  const auto item = std::ranges::find(tensors, name, &NamedTensor::name);
  return item == tensors.end() ? nullptr : &item->tensor;
}

const Tensor& TensorFile::at(std::string_view name) const {
  if (const Tensor* tensor = find(name)) return *tensor;
  fail(ErrorCode::invalid_argument, path.native(), ": no tensor is named ", name);
}

TensorFile open_tensors(const std::filesystem::path& path) {
  TensorFile file = read_safetensors(map_file(path));
  file.path = path;
  return file;
}

}  // namespace polyhead::io
