// Replaces src/io/file_bytes.cc and src/io/tensor_file.cc in a live page. A page has no file system: its only files are those of the models that the
// module carries and those of the model that the page carries.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/text.h"
#include "io/file_bytes.h"
#include "io/formats.h"
#include "page_files.h"  // a header of apps/polyhead
#include "page_memory.h"

namespace polyhead::io {
inline namespace internal {
namespace {

const std::span<const BuiltInFile>* built_in = nullptr;

// The files that the page carries (page_files.h), as views of page_memory.
std::map<std::string, std::span<std::byte>, std::less<>> of_page;
std::shared_ptr<std::string> page_memory;

std::span<std::byte> find_in_page(const std::filesystem::path& path) {
  const std::string_view name = path.native();
  const auto file = name.starts_with(live::kPageFolder) ? of_page.find(name.substr(live::kPageFolder.size())) : of_page.end();
  return file == of_page.end() ? std::span<std::byte>() : file->second;
}

const BuiltInFile* find(const std::filesystem::path& path) {
  const std::string_view name = path.native();
  if (built_in == nullptr || !name.starts_with(kBuiltIn)) return nullptr;
  const auto file = std::ranges::find(*built_in, name.substr(kBuiltIn.size()), &BuiltInFile::name);
  return file == built_in->end() ? nullptr : &*file;
}

}  // namespace

void set_built_in_files(const std::span<const BuiltInFile>* files) { built_in = files; }
bool file_exists(const std::filesystem::path& path) { return find(path) != nullptr || find_in_page(path).data() != nullptr; }
std::vector<std::string> files_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  if (folder.native() == live::kPageFolder)
    for (const auto& [name, bytes] : of_page) names.push_back(name.substr(1));
  return names;
}
void require_regular(const std::filesystem::path&) {}
void FileBytes::require_complete() const {}

FileBytes read_file(const std::filesystem::path& path) {
  if (const auto bytes = find_in_page(path); bytes.data() != nullptr) return {path, bytes, page_memory};
  const BuiltInFile* const file = find(path);
  if (file == nullptr) fail(ErrorCode::io, "cannot open ", path.native(), ": a page has only the files of its models");
  const auto bytes = std::as_bytes(std::span(file->bytes));
  const auto memory = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  return {path, *memory, memory};
}

FileBytes map_file(const std::filesystem::path& path) { return read_file(path); }

}  // namespace internal

TensorFile open_tensors(const std::filesystem::path& given) {
  const std::filesystem::path path = given.native() == live::kPageFolder ? given / "model.safetensors" : given;
  TensorFile file = read_safetensors(map_file(path));
  file.path = path;
  return file;
}

}  // namespace polyhead::io

namespace polyhead::live {

void set_page_files(std::string packed) {
  auto memory = std::make_shared<std::string>(std::move(packed));
  const auto bytes = std::as_writable_bytes(std::span(*memory));
  io::of_page.clear();
  std::size_t at = 0;
  const auto take = [&](std::size_t count) {
    if (count > bytes.size() - at) fail(ErrorCode::format, "the files of this page are cut off");
    at += count;
    return bytes.subspan(at - count, count);
  };
  const auto number = [&] {
    std::uint32_t value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  };
  while (at < bytes.size()) {
    const std::uint32_t name_bytes = number(), file_bytes = number();
    const auto name = take(name_bytes);
    at = std::min((at + kPageAlignment - 1) / kPageAlignment * kPageAlignment, bytes.size());
    io::of_page.emplace("/" + std::string(reinterpret_cast<const char*>(name.data()), name.size()), take(file_bytes));
    at = std::min((at + 3) / 4 * 4, bytes.size());
  }
  io::page_memory = std::move(memory);
}

}  // namespace polyhead::live
