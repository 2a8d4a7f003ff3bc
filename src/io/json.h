// JSON texts of model files: strict (RFC 8259, no key twice, at most 64 levels). Destroying a value allocates no memory, unlike
// nlohmann::json, whose destructor ends the program when memory runs out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace polyhead::io {

struct Json {
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;  // in the order of the text

  // int64 holds negative integers only; double holds all numbers that are no 64-bit integer.
  std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object> value;

  template <class T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
  const Json* find(std::string_view key) const;  // nullptr: no object, or no such member
};

// Error (format) "<what> is not JSON at its byte 12"; `what` names the text in messages: "config.json".
Json parse_json(std::string_view text, std::string_view what);

// For messages: "null", "the number 7", "an array".
std::string describe(const Json& json);

// A UTF-8 text as a JSON string, quotes included.
std::string json_string(std::string_view utf8);

}  // namespace polyhead::io
