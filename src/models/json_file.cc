#include "models/json_file.h"

#include <limits>

#include "core/text.h"
#include "io/file_bytes.h"

namespace polyhead::models {

using nlohmann::json;

JsonFile::JsonFile(const std::filesystem::path& path) : name_(path.filename().string()) {
  const io::FileBytes file = io::map_file(path);
  const std::string_view content = file.text();
  try {
    root_ = json::parse(content);
  } catch (const json::parse_error& e) {
    if (e.byte > content.size()) fail(ErrorCode::format, name_, ": not valid JSON: its ", content.size(), " bytes end too early");
    fail(ErrorCode::format, name_, ": not valid JSON at byte ", e.byte, " of ", content.size());
  } catch (const json::exception&) {
    fail(ErrorCode::format, name_, ": not valid JSON");
  }
  if (!root_.is_object()) fail(ErrorCode::format, name_, ": holds a JSON ", root_.type_name(), "; an object is needed");
}

void JsonFile::fail_at(std::string_view where, std::string_view key, std::string_view message) const {
  fail(ErrorCode::format, name_, ": ", where, where.empty() ? "" : ".", key, " ", message);
}

const json* JsonFile::find(const json& object, std::string_view key) {
  const auto member = object.find(std::string(key));
  return member == object.end() || member->is_null() ? nullptr : &*member;
}

const json& JsonFile::require(const json& object, std::string_view key, std::string_view where) const {
  const json* member = find(object, key);
  if (member == nullptr) fail_at(where, key, "is missing");
  return *member;
}

std::optional<std::int64_t> JsonFile::integer(const json& object, std::string_view key, std::string_view where) const {
  const json* member = find(object, key);
  if (member == nullptr) return std::nullopt;
  if (!member->is_number_integer()) fail_at(where, key, cat("is a ", member->type_name(), "; an integer is needed"));
  if (member->is_number_unsigned() && member->get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    fail_at(where, key, "is larger than 2^63 - 1");
  return member->get<std::int64_t>();
}

std::optional<double> JsonFile::number(const json& object, std::string_view key, std::string_view where) const {
  const json* member = find(object, key);
  if (member == nullptr) return std::nullopt;
  if (!member->is_number()) fail_at(where, key, cat("is a ", member->type_name(), "; a number is needed"));
  return member->get<double>();
}

std::optional<bool> JsonFile::boolean(const json& object, std::string_view key, std::string_view where) const {
  const json* member = find(object, key);
  if (member == nullptr) return std::nullopt;
  if (!member->is_boolean()) fail_at(where, key, cat("is a ", member->type_name(), "; true or false is needed"));
  return member->get<bool>();
}

std::optional<std::string> JsonFile::text(const json& object, std::string_view key, std::string_view where) const {
  const json* member = find(object, key);
  if (member == nullptr) return std::nullopt;
  if (!member->is_string()) fail_at(where, key, cat("is a ", member->type_name(), "; a string is needed"));
  return member->get<std::string>();
}

}  // namespace polyhead::models
