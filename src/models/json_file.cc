#include "models/json_file.h"

#include <algorithm>
#include <concepts>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/join.h"
#include "core/text.h"
#include "io/file_bytes.h"

namespace polyhead::models {

using io::Json;

std::optional<double> as_number(const Json& json) {
  const auto convert = []<class T>(const T& value) -> std::optional<double> {
    if constexpr (std::is_arithmetic_v<T> && !std::same_as<T, bool>) return static_cast<double>(value);
    return std::nullopt;
  };
  return std::visit(convert, json.value);
}

JsonFile::JsonFile(const std::filesystem::path& path) : JsonFile(io::read_file(path).text(), path.filename().string()) {}

JsonFile::JsonFile(std::string_view text, std::string name) : name_(std::move(name)), root_(io::parse_json(text, name_)) {
  if (root_.as<Json::Object>() == nullptr) fail(ErrorCode::format, name_, " is ", describe(root_), "; an object is needed");
}

void JsonFile::fail_at(std::string_view where, std::string_view key, std::string_view message) const {
  fail(ErrorCode::format, name_, ": ", where, where.empty() ? "" : ".", key, " ", message);
}

const Json* JsonFile::find(const Json& object, std::string_view key) {
  const Json* member = object.find(key);
  return member == nullptr || member->as<std::nullptr_t>() != nullptr ? nullptr : member;
}

const Json& JsonFile::require(const Json& object, std::string_view key, std::string_view where) const {
  const Json* member = find(object, key);
  if (member == nullptr) fail_at(where, key, "is missing");
  return *member;
}

void JsonFile::allow_only(const Json& object, std::span<const std::string_view> keys, std::string_view where) const {
  const auto* members = object.as<Json::Object>();
  if (members == nullptr) return;
  for (const Json::Member& member : *members)
    if (std::ranges::find(keys, member.key) == keys.end())
      fail(ErrorCode::unsupported, name_, ": ", where, where.empty() ? "" : ".", member.key, " is not known; known here: ", join(keys));
}

template <class T>
std::optional<T> JsonFile::get(const Json& object, std::string_view key, std::string_view where) const {
  const Json* member = find(object, key);
  if (member == nullptr) return std::nullopt;
  if (const auto* value = member->as<T>()) return *value;
  std::string_view needed = std::same_as<T, bool> ? "true or false" : "a string";
  if constexpr (std::same_as<T, double>) {
    if (const auto number = as_number(*member)) return number;
    needed = "a number";
  } else if constexpr (std::same_as<T, std::int64_t>) {
    if (const auto* natural = member->as<std::uint64_t>(); natural != nullptr && *natural <= std::numeric_limits<std::int64_t>::max()) return static_cast<T>(*natural);
    needed = "an integer below 2^63";
  }
  fail_at(where, key, cat("is ", describe(*member), "; ", needed, " is needed"));
}

template std::optional<std::int64_t> JsonFile::get(const Json&, std::string_view, std::string_view) const;
template std::optional<double> JsonFile::get(const Json&, std::string_view, std::string_view) const;
template std::optional<bool> JsonFile::get(const Json&, std::string_view, std::string_view) const;
template std::optional<std::string> JsonFile::get(const Json&, std::string_view, std::string_view) const;

}  // namespace polyhead::models
