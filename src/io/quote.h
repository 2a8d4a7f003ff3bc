#pragma once

#include <string>
#include <string_view>

namespace polyhead::io {

// A name from a file, fit for a message: in quotes, control characters escaped, bytes that are not UTF-8 replaced by U+FFFD, long ones cut.
std::string quote(std::string_view name);

bool is_utf8(std::string_view text);

}  // namespace polyhead::io
