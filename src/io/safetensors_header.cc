#include "io/safetensors_header.h"

#include <algorithm>
#include <limits>

#include "core/join.h"
#include "io/json.h"

namespace polyhead::io {
namespace {

SafetensorsEntry read_entry(const FileBytes& file, const std::string& name, const Json::Object& fields) {
  const auto bad = [&](const auto&... parts) { fail(ErrorCode::format, file.name(), ": tensor ", quote(name), " ", parts...); };
  const auto integers = [&](const Json::Member& field, std::string_view rule) {
    const auto* array = field.value.as<Json::Array>();
    if (array == nullptr) bad("has ", describe(field.value), " as its ", field.key, "; it must be an array");
    std::vector<std::uint64_t> result;
    for (const Json& item : *array) {
      const auto* number = item.as<std::uint64_t>();
      if (number == nullptr) bad("has ", describe(item), " in its ", field.key, "; ", rule);
      result.push_back(*number);
    }
    return result;
  };
  SafetensorsEntry entry{.name = name};
  for (const Json::Member& field : fields) {
    if (field.key == "dtype") {
      const auto* dtype = field.value.as<std::string>();
      if (dtype == nullptr) bad("has ", describe(field.value), " as its dtype; it must be a string");
      const auto row = std::ranges::find(kDTypes, *dtype, &DTypeInfo::safetensors);
      if (row == kDTypes.end()) bad("has the dtype ", quote(*dtype), "; polyhead reads ", join(kDTypes, &DTypeInfo::safetensors));
      entry.dtype = row->dtype;
    } else if (field.key == "shape") {
      for (const std::uint64_t extent : integers(field, "extents are unsigned integers")) {
        if (entry.shape.size() == kMaxRank) bad("has a shape of more than ", kMaxRank, " extents");
        if (extent > std::numeric_limits<std::int64_t>::max()) bad("has an extent of ", extent, ", which is above 2^63 - 1");
        entry.shape.push_back(static_cast<std::int64_t>(extent));
      }
    } else if (field.key == "data_offsets") {
      const std::vector<std::uint64_t> offsets = integers(field, "they are two unsigned integers");
      if (offsets.size() != 2) bad("has ", offsets.size(), " data_offsets; there must be 2");
      entry.begin = offsets[0], entry.end = offsets[1];
    } else {
      bad("has the field ", quote(field.key), "; a tensor has dtype, shape and data_offsets");
    }
  }
  for (const std::string_view field : {"dtype", "shape", "data_offsets"}) {
    if (std::ranges::find(fields, field, &Json::Member::key) == fields.end()) bad("has no ", field);
  }
  return entry;
}

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
      header.entries.push_back(read_entry(file, name, *object));
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
