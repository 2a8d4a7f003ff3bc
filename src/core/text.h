// Builds messages from texts, numbers, shapes and dtypes. iostreams are not used, because they format numbers by the process' locale.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "polyhead/error.h"
#include "polyhead/tensor_view.h"

namespace polyhead::inline internal {

// One part of a message: a text, a number, a shape or a dtype. A MessagePart points to its text or shape, so it may not outlive the expression that makes
// it. All parts have this one type, because a template function for each combination of types took a tenth of the library's compile time.
class MessagePart {
 public:
  MessagePart(std::string_view text, std::string_view second = {}) : kind_(Kind::text), second_(second) { value_.text = text; }
  MessagePart(const char* text) : MessagePart(std::string_view(text)) {}
  MessagePart(const std::string& text) : MessagePart(std::string_view(text)) {}
  MessagePart(const Dims& dims) : kind_(Kind::dims) { value_.dims = &dims; }
  MessagePart(DType dtype) : MessagePart(info(dtype).name) {}
  template <std::integral T>
  MessagePart(T number) {
    if constexpr (std::same_as<T, char>) {
      kind_ = Kind::character;
      value_.character = number;
    } else if constexpr (std::same_as<T, bool>) {
      kind_ = Kind::text;
      value_.text = number ? "true" : "false";
    } else if constexpr (std::signed_integral<T>) {
      kind_ = Kind::signed_number;
      value_.signed_number = number;
    } else {
      kind_ = Kind::unsigned_number;
      value_.unsigned_number = number;
    }
  }
  MessagePart(float number) : kind_(Kind::float32) { value_.float32 = number; }
  MessagePart(double number) : kind_(Kind::float64) { value_.float64 = number; }

 private:
  friend void append(std::string& text, const MessagePart& part);

  enum class Kind : std::uint8_t { text, dims, character, signed_number, unsigned_number, float32, float64 };
  union Value {
    std::string_view text{};
    const Dims* dims;
    char character;
    std::int64_t signed_number;
    std::uint64_t unsigned_number;
    float float32;
    double float64;
  };

  Kind kind_{};
  Value value_;
  std::string_view second_;
};

#pragma GCC visibility push(default)  // exported: the libraries of other components call these
void append(std::string& text, const MessagePart& part);
std::string join_parts(std::initializer_list<MessagePart> parts);
[[noreturn]] void fail_with(ErrorCode code, std::initializer_list<MessagePart> parts);
// Returns a size in powers of 1024, as data sheets of processors give sizes of caches: "32 KiB", "1.25 MiB".
std::string size_text(std::int64_t bytes);
#pragma GCC visibility pop

// Returns the parts joined to one text: cat("k is ", shape, "; H = ", 64) is "k is [2,3]; H = 64" for a shape [2,3].
template <class... Parts>
std::string cat(const Parts&... parts) {
  return join_parts({MessagePart(parts)...});
}

template <class... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  fail_with(code, {MessagePart(parts)...});
}

template <class... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) fail(ErrorCode::invalid_argument, parts...);
}

}  // namespace polyhead::inline internal
