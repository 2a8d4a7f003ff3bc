#include "polyhead/io/tensor_file.h"

#include <algorithm>
#include <new>
#include <set>

#include "core/join.h"
#include "io/element_bytes.h"
#include "io/foreign.h"
#include "io/formats.h"
#include "io/json.h"

namespace polyhead::io {
namespace {

const Format* by_extension(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const auto fits = [&](const Format& format) { return name.ends_with(format.extension); };
  const auto row = std::ranges::find_if(format_table(), fits);
  return row == format_table().end() ? nullptr : &*row;
}

// Finds the format by the contents. A damaged file may look like no format; its extension then chooses the reader, whose message says what is wrong. Returns
// nullptr if the extension is unknown too. Throws an Error if the file has a known format that polyhead does not read, such as HDF5.
const Format* recognise(const FileBytes& file) {
  const auto row = std::ranges::find_if(format_table(), [&](const Format& format) { return format.sniff(file.text()); });
  if (row != format_table().end()) return &*row;
  if (const std::string kind = foreign_kind(file.text()); !kind.empty()) fail(ErrorCode::format, file.name(), ": it is ", kind);
  return by_extension(file.path);
}

// Names with NUL are refused: readers that take them for C strings, such as those of npz archives, would cut the name.
bool has_nul(std::string_view name) { return name.find('\0') != std::string_view::npos; }

std::filesystem::path inside_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return path;
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (!std::filesystem::exists(path / name, ignored)) continue;
    require_regular(path / name);
    return path / name;
  }
  const std::filesystem::path torch = path / "pytorch_model.bin";
  const std::string there = std::filesystem::exists(torch, ignored) ? cat("; pytorch_model.bin, which it holds, is ", torch_checkpoint()) : std::string();
  fail(ErrorCode::io, "cannot read ", path.string(), ": the folder holds neither model.safetensors nor model.safetensors.index.json", there);
}

}  // namespace

TensorFile open_tensors(const std::filesystem::path& path) {
  const std::filesystem::path place = inside_folder(path);
  try {
    const FileBytes file = map_file(place);
    const Format* format = recognise(file);
    if (format == nullptr) {
      fail(ErrorCode::format, file.name(), ": its ", file.bytes.size(), " bytes are in none of the formats ",
           join(format_table(), &Format::name));
    }
    TensorFile result = format->read(file);
    for (const NamedTensor& item : result.tensors)
      if (has_nul(item.name)) fail(ErrorCode::format, file.name(), ": the name of tensor ", quote(item.name), " holds a NUL character, which no name may");
    result.path = file.path;
    result.format = format->name;
    return result;
  } catch (const std::bad_alloc&) {
    fail(ErrorCode::io, "cannot read ", place.string(), ": its tensors do not fit in memory");
  }
}

void save_tensors(const std::filesystem::path& path, std::span<const NamedView> tensors, const Metadata& metadata) {
  const Format* format = by_extension(path);
  if (format == nullptr || format->write == nullptr) {
    fail(ErrorCode::invalid_argument, "save_tensors: ", path.string(), " does not end in one of ",
         join(filtered(format_table(), [](const Format& row) { return row.write != nullptr; }), &Format::extension));
  }
  std::set<std::string_view> names;
  for (const NamedView& item : tensors) {
    require(static_cast<bool>(item.tensor), "save_tensors: the tensor ", quote(item.name), " is missing");
    require(names.insert(item.name).second, "save_tensors: two tensors are named ", quote(item.name));
    require(is_utf8(item.name), "save_tensors: the name ", quote(item.name), " is not UTF-8 text");
    require(!has_nul(item.name), "save_tensors: the name ", quote(item.name), " holds a NUL character, which no name may");
    require(byte_count(item.tensor.dtype(), item.tensor.shape()).has_value(), "save_tensors: ", quote(item.name), " of shape ",
            item.tensor.shape(), " is more than 2^63 - 1 bytes");
  }
  for (const auto& [key, value] : metadata) {
    require(is_utf8(key) && is_utf8(value), "save_tensors: the metadata under ", quote(key), " are not UTF-8 text");
  }
  AtomicFile file(path);
  format->write(file, tensors, metadata);
  file.commit();
}

void save_tensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
  std::vector<NamedView> views;
  views.reserve(tensors.size());
  for (const NamedTensor& item : tensors) views.push_back({item.name, item.tensor});
  save_tensors(path, views, metadata);
}

std::vector<FormatDescription> formats() {
  std::vector<FormatDescription> list;
  for (const Format& format : format_table()) list.push_back({format.name, format.extension, format.write != nullptr});
  return list;
}

}  // namespace polyhead::io
