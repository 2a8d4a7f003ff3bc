// Parser for the JSON of model files. It is strict: RFC 8259, no key twice in an object, at most 64 levels. Destroying a Json allocates no
// memory; the destructor of nlohmann::json does, and ends the program if memory runs out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#pragma GCC visibility push(default)  // exported: the libraries of other components call these
namespace polyhead::io::inline internal {

struct Json {
  struct Member;
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;  // members in the order of the text

  // Integers >= 0 are uint64, negative integers int64, all other numbers double.
  std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object> value;

  template <class T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
  const Json* find(std::string_view key) const;  // nullptr if this is not an object or has no such member
};

struct Json::Member {
  std::string key;
  Json value;
};

// Throws Error (format), such as "<what> is not JSON at its byte 12". `what` names the text, such as "config.json".
Json parse_json(std::string_view text, std::string_view what);

// Describes the value for messages: "null", "the number 7", "an array".
std::string describe(const Json& json);

// Returns a UTF-8 text as a JSON string, quotes included.
std::string json_string(std::string_view utf8);

// Formats a name from a file for a message: a JSON string of at most 200 bytes, in which U+FFFD replaces invalid UTF-8.
std::string quote(std::string_view name);

bool is_utf8(std::string_view text);

}  // namespace polyhead::io::inline internal
#pragma GCC visibility pop
