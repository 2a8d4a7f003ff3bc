#include "io/safetensors_header.h"

#include <algorithm>
#include <limits>

#include "core/text.h"
#include "io/json.h"

namespace polyhead::io {
namespace {

std::string known_dtypes() {
  std::string list;
  for (const DTypeInfo& row : kDTypes) list += (list.empty() ? "" : ", ") + std::string(row.safetensors);
  return list;
}

class EntryReader {
 public:
  EntryReader(const FileBytes& file, const std::string& name) : file_(file), entry_{.name = name} {}

  SafetensorsEntry read(const Json::Object& fields) {
    for (const auto& [field, value] : fields) {
      if (field == "dtype") {
        read_dtype(value);
      } else if (field == "shape") {
        read_shape(value);
      } else if (field == "data_offsets") {
        read_offsets(value);
      } else {
        bad("has the field ", quote(field), "; a tensor has dtype, shape and data_offsets");
      }
    }
    for (const std::string_view field : {"dtype", "shape", "data_offsets"}) {
      if (std::ranges::find(fields, field, &Json::Member::key) == fields.end()) bad("has no ", field);
    }
    return std::move(entry_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void bad(const Parts&... parts) const {
    fail(ErrorCode::format, file_.name(), ": tensor ", quote(entry_.name), " ", parts...);
  }
  void read_dtype(const Json& value) {
    const auto* name = value.as<std::string>();
    if (name == nullptr) bad("has ", describe(value), " as its dtype; it must be a string");
    const auto row = std::ranges::find(kDTypes, *name, &DTypeInfo::safetensors);
    if (row == kDTypes.end()) bad("has the dtype ", quote(*name), "; polyhead reads ", known_dtypes());
    entry_.dtype = row->dtype;
  }
  void read_shape(const Json& value) {
    for (const std::uint64_t extent : integers(value, "shape", "extents are unsigned integers")) {
      if (entry_.shape.size() == kMaxRank) bad("has a shape of more than ", kMaxRank, " extents");
      if (extent > std::numeric_limits<std::int64_t>::max()) bad("has an extent of ", extent, ", which is above 2^63 - 1");
      entry_.shape.push_back(static_cast<std::int64_t>(extent));
    }
  }
  void read_offsets(const Json& value) {
    const std::vector<std::uint64_t> offsets = integers(value, "data_offsets", "they are two unsigned integers");
    if (offsets.size() != 2) bad("has ", offsets.size(), " data_offsets; there must be 2");
    entry_.begin = offsets[0], entry_.end = offsets[1];
  }
  std::vector<std::uint64_t> integers(const Json& value, std::string_view field, std::string_view rule) const {
    const auto* array = value.as<Json::Array>();
    if (array == nullptr) bad("has ", describe(value), " as its ", field, "; it must be an array");
    std::vector<std::uint64_t> result;
    for (const Json& item : *array) {
      const auto* number = item.as<std::uint64_t>();
      if (number == nullptr) bad("has ", describe(item), " in its ", field, "; ", rule);
      result.push_back(*number);
    }
    return result;
  }

  const FileBytes& file_;
  SafetensorsEntry entry_;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(const FileBytes& file, std::string_view text) {
  const std::string what = file.name() + ": the safetensors header";
  const Json json = parse_json(text, what);
  if (json.as<Json::Object>() == nullptr) fail(ErrorCode::format, what, " is ", describe(json), "; it must be an object");
  SafetensorsHeader header;
  for (const auto& [name, value] : *json.as<Json::Object>()) {
    const auto* object = value.as<Json::Object>();
    if (object == nullptr) fail(ErrorCode::format, what, " has ", describe(value), " under ", quote(name), "; it must be an object");
    if (name != "__metadata__") {
      header.entries.push_back(EntryReader(file, name).read(*object));
      continue;
    }
    for (const auto& [key, item] : *object) {
      const auto* metadata = item.as<std::string>();
      if (metadata == nullptr)
        fail(ErrorCode::format, what, " has ", describe(item), " in its __metadata__ under ", quote(key), "; it must be a string");
      header.metadata.emplace(key, *metadata);
    }
  }
  return header;
}

}  // namespace polyhead::io
