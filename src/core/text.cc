#include "core/text.h"

#include <charconv>

namespace polyhead::inline internal {
namespace {

template <class T>
void append_number(std::string& text, T number) {
  char digits[32];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

}  // namespace

void append(std::string& text, const MessagePart& part) {
  switch (part.kind_) {
    case MessagePart::Kind::text: (text += part.value_.text) += part.second_; break;
    case MessagePart::Kind::dims: text += to_string(*part.value_.dims); break;
    case MessagePart::Kind::character: text += part.value_.character; break;
    case MessagePart::Kind::signed_number: append_number(text, part.value_.signed_number); break;
    case MessagePart::Kind::unsigned_number: append_number(text, part.value_.unsigned_number); break;
    case MessagePart::Kind::float32: append_number(text, part.value_.float32); break;
    case MessagePart::Kind::float64: append_number(text, part.value_.float64); break;
  }
}

std::string join_parts(std::initializer_list<MessagePart> parts) {
  std::string text;
  for (const MessagePart& part : parts) append(text, part);
  return text;
}

void fail_with(ErrorCode code, std::initializer_list<MessagePart> parts) { throw Error(code, join_parts(parts)); }

std::string size_text(std::int64_t bytes) {
  constexpr std::int64_t kKibi = 1024, kMebi = kKibi * kKibi;
  if (bytes >= kMebi && bytes % (kMebi / 4) == 0) return cat(static_cast<double>(bytes) / kMebi, " MiB");
  return bytes % kKibi == 0 ? cat(bytes / kKibi, " KiB") : cat(bytes, " B");
}

}  // namespace polyhead::inline internal
